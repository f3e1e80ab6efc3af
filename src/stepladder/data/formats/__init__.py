"""File formats of tokens and text, each opened as a source of samples."""
