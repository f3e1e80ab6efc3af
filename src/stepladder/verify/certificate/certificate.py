"""A certificate's contents and its file.

It holds plans, what was trained, versions and the machine; of every step the loss and, of every
parameter and buffer, a hash of its bits and a sketch of its numbers; and the verdicts against one
device. The sketch, a few weighted sums, says how far two tensors of other bits are apart.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError

FORMAT, VERSION = "stepladder certificate", 2  # 1 had no buffers


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One parameter or buffer after one step."""

    hash: str  # of its type, shape and bits
    sketch: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What all ranks together know of one step."""

    loss: float
    tensors: Mapping[str, Fingerprint]  # parameters and buffers


@dataclass(frozen=True, slots=True)
class CertifiedRun:
    """One plan under one optimizer."""

    plan: str  # with every number filled in
    asked: str  # as it was asked for
    optimizer: str
    device: str
    verdict: str  # against one device
    first: Mapping[str, Fingerprint]  # parameters and buffers before the first step
    steps: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """Runs, what they trained, and what they were made with."""

    model: str
    subject: Mapping[str, Any]  # texts that name what was trained; empty: it must be given
    made_with: Mapping[str, str]  # versions, the processor, the number of threads
    runs: tuple[CertifiedRun, ...] = field(default=())

    def write(self, path: str | Path) -> Path:
        """Put it into a file, whole or not at all."""
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        target = Path(path)
        part = target.with_name(f"{target.name}.part")
        try:
            part.write_text(json.dumps({**body, "digest": digest(body)}, indent=1) + "\n")
            os.replace(part, target)
        except OSError as error:
            problem = f"{target} cannot be written: {error.strerror}"
            raise RecordError(
                "certificate", problem, "Name a file in a folder that exists."
            ) from None
        return target

    @classmethod
    def read(cls, path: str | Path) -> Certificate:
        """The certificate in a file, or in one line why it is none."""
        body = read_body(Path(path))
        try:
            return cls(
                body["model"], body["subject"], body["made_with"], tuple(map(run_of, body["runs"]))
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                "certificate", f"{path} lacks a part that every certificate has ({error})", REMEDY
            ) from None


REMEDY = "Write it again with 'stepladder verify parity --certificate FILE'."


def read_body(path: Path) -> dict[str, Any]:
    """The contents, of this format and version and as they were written."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        raise RecordError("certificate", problem, "Name a file that a proof wrote.") from None
    except ValueError:
        problem = f"{path} is damaged or something else: it is not JSON to its end"
        raise RecordError("certificate", problem, REMEDY) from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise RecordError("certificate", f"{path} is JSON, but not of a certificate", REMEDY)
    if body.get("version") != VERSION:
        raise RecordError(
            "certificate",
            f"{path} is of version {body.get('version')}, and this stepladder reads {VERSION}",
            "Read it with the stepladder that its 'made_with' names.",
        )
    if body.pop("digest", None) != digest(body):
        problem = f"{path} was changed after it was written: its digest is another"
        raise RecordError("certificate", problem, REMEDY)
    return body


def digest(body: Mapping[str, Any]) -> str:
    """A hash of all contents, however they are spaced."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def run_of(body: Mapping[str, Any]) -> CertifiedRun:
    steps = tuple(StepRecord(step["loss"], prints_of(step["tensors"])) for step in body["steps"])
    words = {key: body[key] for key in ("plan", "asked", "optimizer", "device", "verdict")}
    first = prints_of(body["first"])
    if not steps:
        raise KeyError(f"the steps of '{words['asked']}'")
    for number, step in enumerate(steps):
        if step.tensors.keys() != first.keys():
            name = min(step.tensors.keys() ^ first.keys())
            raise KeyError(f"'{name}' before and after step {number} of '{words['asked']}'")
        if not isinstance(step.loss, int | float):
            raise KeyError(f"the loss of step {number} of '{words['asked']}'")
    return CertifiedRun(**words, first=first, steps=steps)


def prints_of(body: Mapping[str, Any]) -> dict[str, Fingerprint]:
    return {name: Fingerprint(one["hash"], tuple(one["sketch"])) for name, one in body.items()}
