"""Proofs that a change of plan changes nothing: parity, resume, precision."""

from .parity_verdict import Sameness
from .subjects import Subject, find_subject

__all__ = [
    "Sameness",
    "Subject",
    "find_subject",
]
