"""Reading samples: retries, timeouts, and what to do with a sample that cannot be read."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, Literal

from stepladder.data.sample_order import Integers
from stepladder.data.source import Source
from stepladder.errors import DataError, StepladderError, nearest

from .sample_seeds import seed_generators

FAULTS = re.compile(r"(retry:(?P<retries>[0-9]{1,3}) then )?(?P<then>stop|skip)", re.ASCII)
EXAMPLE = "Write 'retry:3 then stop' or 'retry:3 then skip', or one of stop and skip alone."
MAX_SUBSTITUTES = 16  # neighbours tried before the whole source counts as broken


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """What to do when a sample fails to read, is too long or is shorter than its batch."""

    on_error: Literal["stop", "skip"] = "stop"  # skip: use the next readable sample, and say so
    retries: int = 2  # of a read that raised OSError
    pause_seconds: float = 0.1  # before the first retry; doubled for each one after it
    patience_seconds: float = 600.0  # for one batch, before the run stops and names the sample
    longest: int | None = None  # the most tokens a sample may have
    too_long: Literal["stop", "cut"] = "stop"
    pad: int = 0  # fills shorter inputs; shorter targets are filled with -100

    def __post_init__(self) -> None:
        _one_of("reading.on_error", self.on_error, ("stop", "skip"))
        _one_of("reading.too_long", self.too_long, ("stop", "cut"))
        if self.longest is not None and self.longest < 1:
            raise DataError(
                "longest", f"{self.longest} is not a number of tokens", "Use at least 1."
            )
        if self.retries < 0:
            raise DataError("reading.retries", f"{self.retries} is not a count", "Use 0 for none.")

    @classmethod
    def parse(cls, text: str) -> ReadPolicy:
        """Parse a recipe's data.faults, such as 'retry:3 then skip'."""
        found = FAULTS.fullmatch(text.strip())
        if found is None:
            raise DataError("data.faults", f"'{text}' is not a policy", EXAMPLE)
        return cls(on_error=found["then"], retries=int(found["retries"] or 0))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SampleReader:
    """Reads the samples of a source under a policy."""

    source: Source
    policy: ReadPolicy
    reading_now: dict[int, int] = field(default_factory=dict)  # the index each thread reads now

    def fetch(self, indices: Integers, seed: int | None = None) -> Any | None:
        """Many samples at once, or None if they must be read one by one.

        Args:
            seed: for the random generators; None: reading draws nothing.
        """
        fetch = getattr(self.source, "fetch", None)
        if fetch is None:
            return None
        self.reading_now[get_ident()] = int(indices[0])
        try:
            if seed is not None:
                seed_generators(seed)
            return fetch(indices)
        except (OSError, StepladderError) as error:
            if self.policy.on_error == "stop" and isinstance(error, StepladderError):
                raise
            return None  # reading one by one finds the bad sample, with its retries
        except Exception as error:
            raise self._failed(int(indices[0]), error) from error

    def read(self, index: int, seed: int | None = None) -> tuple[Any, str | None]:
        """The sample and None, or its substitute and a sentence that says so."""
        if self.policy.on_error == "stop":
            return self._try(index, seed), None
        for offset in range(MAX_SUBSTITUTES + 1):
            try:
                sample = self._try((index + offset) % len(self.source), seed)
            except StepladderError as error:
                if offset == 0:
                    first = error
                continue
            return (
                sample,
                f"{first} Sample {(index + offset) % len(self.source)} stands in."
                if offset
                else None,
            )
        raise DataError(
            first.field,
            f"{first.problem}; so are the {MAX_SUBSTITUTES} samples after it",
            "Too many to skip: mend the source.",
        )

    def name(self, index: int) -> str:
        """The sample in words: its file if the source knows it."""
        where = getattr(self.source, "where", None)
        return f"sample {index} ({where(index) if where else type(self.source).__name__})"

    def _try(self, index: int, seed: int | None) -> Any:
        self.reading_now[get_ident()] = index
        for attempt in range(self.policy.retries + 1):
            try:
                if seed is not None:  # before each attempt: a failed one may have drawn
                    seed_generators(seed)
                return self.source[index]
            except StepladderError:
                raise
            except OSError as error:  # may be transient
                if attempt == self.policy.retries:
                    raise self._failed(index, error) from error
                time.sleep(self.policy.pause_seconds * 2**attempt)
            except Exception as error:
                raise self._failed(index, error) from error
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, index: int, error: Exception) -> DataError:
        return DataError(
            self.name(index),
            f"cannot be read ({type(error).__name__}: {error})",
            "Mend or remove it, or go on without it: on_error='skip', data.faults in a recipe.",
        )


def _one_of(field_name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DataError(field_name, f"'{value}' is not a policy", nearest(value, choices))
