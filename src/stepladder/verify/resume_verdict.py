"""What was found of a run that was killed and resumed, and what of it counts as the same."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stepladder.checkpoint import (
    CheckpointReader,
    Manifest,
    as_bytes,
    list_checkpoints,
    read_manifest,
)
from stepladder.plan import Plan

from .parity_verdict import TOLERANCES, largest, narrowest, relative

Note = Mapping[str, Any]  # what one rank wrote down of one step
Notes = Mapping[int, Sequence[Note]]  # of each step, by rank


@dataclass(frozen=True, slots=True)
class Resumption:
    """One journey; `problem` says why it never ended."""

    plan: str
    ranks: tuple[int, ...]  # of each leg
    exact: bool  # judged to the last bit
    killed_in: tuple[int, ...] = ()  # steps that were under way
    resumed_at: tuple[int, ...] = ()  # steps that were taken next
    loss: float = math.inf  # largest relative difference of any step
    parameters: float = math.inf  # distance at the end, relative to their size
    tolerance: float = 0.0  # of losses
    expected: tuple[float, ...] = ()  # losses of the run that was never stopped
    found: tuple[float, ...] = ()  # of the one that was
    plain: float | None = None  # largest difference from a plain torch loop; None: not compared
    different: tuple[str, ...] = ()  # what is not as it should be
    problem: str = ""
    refused: bool = False  # the plan itself is the problem, and its user can mend it

    @property
    def same(self) -> bool:
        return not self.problem and not self.different and self.loss <= self.tolerance

    @property
    def verdict(self) -> str:
        if self.problem:
            return "refused" if self.refused else "BROKE"
        if not self.same:
            return "DIFFERENT"
        return "same bits" if self.exact else "same"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a run left behind: its notes and its last checkpoint."""

    notes: Notes
    folder: Path


def read_notes(folder: Path) -> Notes:
    """Every whole note of every rank; a rank that was killed may have left half of one."""
    found: dict[int, list[Note]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                note = json.loads(line)
                found.setdefault(note["step"], []).append(note)
    return found


def judge(
    shown: Resumption, plans: Sequence[Plan], expected: Kept, legs: Sequence[Notes], folder: Path,
    plain: Sequence[float] | None = None,
) -> Resumption:  # fmt: skip
    """Every step of every leg, and what was there at the end.

    Args:
        plain: losses of a plain torch loop, by step.
    """
    losses = {step: float(notes[0]["loss"]) for step, notes in expected.notes.items()}
    found = {step: float(notes[0]["loss"]) for leg in legs for step, notes in leg.items()}
    apart = [
        relative(losses[step], float(note["loss"]))
        for leg in legs
        for step, notes in leg.items()
        for note in notes
    ]
    ends = [list_checkpoints(kept)[0] for kept in (expected.folder, folder)]
    work = max(map(narrowest, plans), key=lambda name: TOLERANCES[name])
    different = [
        *missing_steps(losses, found),
        *(line for leg in legs for line in differences(expected.notes, leg, exact=shown.exact)),
        *different_states(*map(read_manifest, ends), exact=shown.exact),
    ]
    distance, tensors = compare_tensors(*ends)
    by_plain = [relative(loss, found.get(step, math.nan)) for step, loss in enumerate(plain or ())]
    different += parts_from_plain(by_plain, TOLERANCES[work])
    return replace(
        shown,
        killed_in=tuple(max(leg) + 1 for leg in legs[:-1]),
        resumed_at=tuple(min(leg) for leg in legs[1:]),
        loss=largest(apart),
        parameters=distance,
        tolerance=0.0 if shown.exact else TOLERANCES[work],
        expected=tuple(losses[step] for step in sorted(losses)),
        found=tuple(found[step] for step in sorted(found)),
        plain=None if plain is None else largest(by_plain),
        different=tuple(dict.fromkeys([*different, *(tensors if shown.exact else ())])),
    )


def missing_steps(expected: Mapping[int, float], found: Mapping[int, float]) -> Iterator[str]:
    lost = sorted(set(expected) ^ set(found))
    if lost:
        yield f"steps: {lost[0]} was taken by one run only"


def parts_from_plain(apart: Sequence[float], tolerance: float) -> list[str]:
    """The first step whose loss is not what a plain torch loop computes."""
    steps = [step for step, value in enumerate(apart) if not value <= tolerance]
    return [f"losses: they part from a plain torch loop's at step {steps[0]}"] if steps else []


def differences(expected: Notes, leg: Notes, *, exact: bool) -> Iterator[str]:
    """The first step at which each thing parts from what it should be."""
    shared = [step for step in sorted(leg) if step in expected]
    asked = ("rows", "loss", "scale", "drawn") if exact else ("rows",)
    for what in asked:
        for step in shared:
            if gathered(what, expected[step]) != gathered(what, leg[step]):
                yield f"{WORDS[what]} part at step {step}"
                break


WORDS = {
    "rows": "data: the rows",
    "loss": "losses: they",
    "scale": "loss scale: the factors",
    "drawn": "random generators: the draws",
}


def gathered(what: str, notes: Sequence[Note]) -> Any:
    """A step's rows of all ranks by position; of anything else, each rank's own."""
    if what == "rows":
        return {place: row for note in notes for place, row in note["rows"].items()}
    return [note[what] for note in notes]


def different_states(expected: Manifest, found: Manifest, *, exact: bool) -> Iterator[str]:
    for key in ("step", "position", "seed", *(("loss_scale",) if exact else ())):
        one, other = expected.state[key], found.state[key]
        if one != other:
            yield f"{key.replace('_', ' ')}: {other} at the end instead of {one}"


def compare_tensors(expected: Path, found: Path) -> tuple[float, list[str]]:
    """How far the parameters are apart, and which tensors differ in any bit: the worst first."""
    moved, size = 0.0, 0.0
    apart: dict[str, float] = {}
    manifests = [read_manifest(path) for path in (expected, found)]
    with (
        CheckpointReader(expected, manifests[0]) as one,
        CheckpointReader(found, manifests[1]) as other,
    ):
        for name in sorted(manifests[0].tensors):
            if name not in manifests[1].tensors:
                apart[name] = math.inf
                continue
            a, b = one.read(name), other.read(name)
            if a.shape != b.shape:
                apart[name] = math.inf
                continue
            a, b = as_real(a), as_real(b)
            distance = (a.double() - b.double()).square().sum().item()
            if name.startswith("model/"):
                moved, size = moved + distance, size + a.double().square().sum().item()
            if not same_bits(a, b):
                apart[name] = distance
    order = sorted(apart, key=lambda name: (-apart[name], name))
    kinds = {name.partition("/")[0]: name for name in reversed(order)}  # the worst of each kind
    lines = [
        f"{'parameters' if kind == 'model' else kind}: '{name.partition('/')[2]}' is not the same"
        for kind, name in sorted(kinds.items())
    ]
    return math.sqrt(moved / size) if size else 0.0, lines


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(as_bytes(one), as_bytes(other))
