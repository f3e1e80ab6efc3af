"""Rung: tensor parallel, matrices split over ranks."""
