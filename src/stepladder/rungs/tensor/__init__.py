"""Tensor parallel, matrices split over ranks."""
