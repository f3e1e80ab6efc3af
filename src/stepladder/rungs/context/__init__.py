"""Context parallel, each sequence split over ranks."""
