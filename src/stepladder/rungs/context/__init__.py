"""Rung: context parallel, each sequence split over ranks."""
