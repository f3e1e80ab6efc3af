"""What one check found. No torch here: the process that waits for findings does without it."""

from __future__ import annotations

from dataclasses import dataclass


class Wrong(Exception):
    """The learner's answer is wrong; the message says how, and where to look."""

    def __init__(self, message: str, found: str = "", expected: str = "") -> None:
        super().__init__(message, found, expected)  # all in args, so that it comes home from ranks
        self.message, self.found, self.expected = message, found, expected

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    claim: str
    passed: bool
    message: str = ""
    found: str = ""  # a number of the learner's, with as many digits as tell it from
    expected: str = ""  # the one that is right

    def marked_digits(self) -> list[str]:
        """Both numbers below each other and marks under the digits that differ, if some agree."""
        width = max(len(self.found), len(self.expected))
        above, below = self.found.rjust(width), self.expected.rjust(width)
        agree = next((at for at, pair in enumerate(zip(above, below)) if pair[0] != pair[1]), 0)
        if not above[:agree].strip(" -0."):
            return []  # the sentence shows as much
        marks = "".join(" ^"[a != b] for a, b in zip(above, below)).rstrip()
        return [f"found     {above}", f"expected  {below}", f"          {marks}"]
