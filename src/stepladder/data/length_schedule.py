"""The length schedule: how many tokens of each window are used at which step.

Short windows first make early steps cheap. `"128@0,256@100,512@200"` uses 128 tokens from step 0,
256 from step 100 and 512 from step 200. A sample stays the same sample; only its end is cut.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from stepladder.errors import DataError

EXAMPLE = "Write it as '128@0,256@100': a length, @, the step it begins at."


@dataclass(frozen=True, slots=True)
class LengthSchedule:
    """Lengths and the steps they begin at."""

    lengths: tuple[int, ...]
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.steps or self.steps[0] != 0:
            first = f"step {self.steps[0]}" if self.steps else "no step"
            raise DataError("lengths", f"the schedule begins at {first}, not at step 0", EXAMPLE)
        for earlier, later in zip(self.steps, self.steps[1:]):
            if later <= earlier:
                raise DataError(
                    "lengths",
                    f"step {later} comes after step {earlier}",
                    "Put the steps in rising order.",
                )
        if min(self.lengths) < 1:
            raise DataError(
                "lengths", f"{min(self.lengths)} is not a number of tokens", "Use at least 1."
            )

    @classmethod
    def parse(cls, text: str) -> LengthSchedule:
        """Read the text form; a bare number is one length throughout."""
        pairs = [_pair(part.strip()) for part in text.split(",")]
        return cls(tuple(length for length, _ in pairs), tuple(step for _, step in pairs))

    def at(self, step: int) -> int:
        """The length in force at a step."""
        return self.lengths[bisect_right(self.steps, step) - 1]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def __str__(self) -> str:
        return ",".join(f"{length}@{step}" for length, step in zip(self.lengths, self.steps))


def _pair(part: str) -> tuple[int, int]:
    length, _, step = part.partition("@")
    try:
        return int(length), int(step or 0)
    except ValueError:
        raise DataError("lengths", f"'{part}' is not a length and a step", EXAMPLE) from None
