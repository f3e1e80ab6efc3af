"""Reading ahead: worker threads and processes, and the copy to the device."""
