"""What is written down, watched and answered while a run trains."""
