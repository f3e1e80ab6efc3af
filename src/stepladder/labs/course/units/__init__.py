"""The units, a file for each part of the course."""
