"""Image data sets and image folders as sources of samples."""
