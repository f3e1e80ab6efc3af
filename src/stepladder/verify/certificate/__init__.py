"""Certificates: what runs computed, in one file that another machine can replay and check."""
