"""Proofs that a change of plan changes nothing: parity, resume, precision."""

from .certificate.certify import check_certificate
from .certificate.replay import Replay
from .locate.difference import Difference
from .parity_verdict import Sameness
from .proofs import parity, precision, resume
from .resume_verdict import Resumption
from .subjects import Subject, find_subject
from .verdict import ParityVerdict, PrecisionVerdict, ResumeVerdict, Verdict

__all__ = [
    "Difference",
    "ParityVerdict",
    "PrecisionVerdict",
    "Replay",
    "ResumeVerdict",
    "Resumption",
    "Sameness",
    "Subject",
    "Verdict",
    "check_certificate",
    "find_subject",
    "parity",
    "precision",
    "resume",
]
