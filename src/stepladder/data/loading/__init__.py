"""Prefetching batches with worker threads or processes, and copying them to the device."""
