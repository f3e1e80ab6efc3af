"""What one check found. No torch here: the process that waits for findings does without it."""

from __future__ import annotations

from dataclasses import dataclass


class Wrong(Exception):
    """The learner's answer is wrong; the message says how, and where to look."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    claim: str
    passed: bool
    message: str = ""
