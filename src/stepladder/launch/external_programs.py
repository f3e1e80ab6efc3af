"""Runs the programs a launcher needs (sbatch, kubectl, ssh) and reads their error in one line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from stepladder.errors import WorldError

LIMIT_SECONDS = 120  # for a scheduler to answer


def find_program(name: str, field: str, remedy: str) -> str:
    """Where the program is, or what to do where it is not."""
    found = shutil.which(name)
    if found is None:
        raise WorldError(field, f"there is no '{name}' on the PATH", remedy)
    return found


def ask(words: Sequence[str], *, given: str = "") -> subprocess.CompletedProcess[str]:
    """What a program answered; the caller judges its code."""
    try:
        return subprocess.run(
            list(words), input=given, capture_output=True, text=True, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as silent:
        raise WorldError(
            words[0].rpartition("/")[2],
            f"did not answer within {LIMIT_SECONDS} s",
            "See that its server runs.",
        ) from silent


def reason(answer: subprocess.CompletedProcess[str]) -> str:
    """The line in which it says what was wrong, without its own name."""
    said = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    said = [line for line in said if not line.startswith("Try ")]  # "sbatch --help" after the error
    return said[-1].rpartition("error: ")[2].rstrip(".") if said else f"code {answer.returncode}"
