"""Judging a trial: the same as the oracle, refused before the first step, or a bug."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepladder.checkpoint import CheckpointReader, find_checkpoints, read_manifest
from stepladder.errors import StepladderError

from .oracle import State, Trajectory, train
from .problems.problem import SAVED_AT, STEPS, Problem

LOSS_TOLERANCE = 2e-4
STATE_TOLERANCE = 2e-3  # of the distance that the plain run moved
SHAKE, RESPONSE = 1e-6, 30.0  # rounding may move a result by so much times the shaken run's change
COARSE = 100.0  # times these tolerances, where a plan computes in 16 bits
COARSE_RESPONSE = 4.0  # times the change that a plain loop in 16 bits shows
GATHERED = {"zero2", "zero3"}  # the module is called with its parameters in 16 bits


@dataclass(frozen=True)
class Verdict:
    """The outcome of a trial or of a part of it."""

    outcome: str  # "same", "refused", "announced" (a difference that the run told of) or "bug"
    kind: str = ""  # of a bug: "difference", "raw", "hang", "late refusal", "unloadable"
    text: str = ""  # one line
    details: str = ""  # a traceback
    stage: str = ""

    @property
    def signature(self) -> tuple[str, str, str]:
        """What failures of one cause have in common: no numbers, no names in quotes."""
        first = re.sub(r"'[^']*'|[-+]?\d[\d.e+-]*", "#", self.text)[:90]
        part = self.stage.partition(" ")[0] if self.kind != "difference" else ""
        return self.kind, part, "" if self.kind == "difference" else first


SAME = Verdict("same")
ANNOUNCED = "results depend on"  # in what a run says of its plan


def judge_records(records: list[dict[str, Any]], part: str) -> Verdict | None:
    """What ranks say themselves: None where all ran through."""
    for record in records:
        if "raw" in record:
            line = record["raw"].partition("\n")[0][:300]
            return Verdict("bug", "raw", line, record["error"], f"{part} {record['stage']}")
    for record in records:
        if "lost" in record:
            return Verdict("bug", "lost", record["lost"], record["error"],
                           f"{part} {record['stage']}")  # fmt: skip
    refusing = [record for record in records if "refused" in record]
    if not refusing:
        return None
    first = refusing[0]
    stage, text = f"{part} {first['stage']}", first["refused"]
    if len(refusing) < len(records):
        return Verdict("bug", "not all refuse", text, first["error"], stage)
    # A batch of another size than the first is refused when it comes.
    comes_later = text.startswith("batch") and first["stage"].startswith(("step", "evaluate"))
    if first["stage"] not in ("climb", "load", "step 0") and not comes_later:
        return Verdict("bug", "late refusal", text, first["error"], stage)
    if first["stage"] == "load":
        return Verdict("bug", "unloadable", text, first["error"], stage)
    if "\n" in text and "PlanErrors" not in first["error"]:
        return Verdict("bug", "several lines", text, first["error"], stage)
    return Verdict("refused", "", text, first["error"], stage)


def judge_numbers(
    problem: Problem, expected: Trajectory, record: dict[str, Any], folder: Path, part: str
) -> Verdict:
    """Losses, evaluation and saved states against the oracle's."""
    verdict = compare_run(problem, expected, record, folder, part)
    told = next((said for said in record["said"] if ANNOUNCED in said), None)
    if verdict.kind == "difference" and told:
        return replace(verdict, outcome="announced", kind="", text=told)
    return verdict


def compare_run(
    problem: Problem, expected: Trajectory, record: dict[str, Any], folder: Path, part: str
) -> Verdict:
    losses = expected.losses[-len(record["losses"]) :]
    scale = max(1e-3, *(abs(loss) for loss in expected.losses))
    coarse = 1.0 if problem.exact else COARSE
    allowed = coarse * LOSS_TOLERANCE * scale
    pairs = [(f"loss of step {STEPS - len(losses) + i}", a, b)
             for i, (a, b) in enumerate(zip(losses, record["losses"]))]  # fmt: skip
    pairs.append(("evaluation", expected.evaluation, record["evaluation"]))
    moved: float | None = None
    for name, wanted, got in pairs:
        if not abs(wanted - got) <= allowed:
            if moved is None:
                moved = max(response(expected, other) for other in rounded(problem))
            if not abs(wanted - got) <= tolerated(problem) * moved:
                text = f"{name} is {got:.6g} instead of {wanted:.6g}"
                return Verdict("bug", "difference", text, stage=part)
    return judge_states(problem, expected, folder, part)


def rounded(problem: Problem) -> Iterator[Trajectory]:
    """Plain loops that round otherwise: from shaken weights, or in 16 bits as the plan has them."""
    if problem.exact:
        yield train(problem, saved_at=SAVED_AT, shake=SHAKE)
        return
    yield train(problem, saved_at=SAVED_AT, work=torch.bfloat16)
    if GATHERED & set(problem.layout.plan.split()):
        with suppress(RuntimeError):  # a norm may refuse parameters of another type than its input
            yield train(problem, saved_at=SAVED_AT, work=torch.bfloat16, narrow=True)


def tolerated(problem: Problem) -> float:
    return RESPONSE if problem.exact else COARSE_RESPONSE


def response(one: Trajectory, other: Trajectory) -> float:
    """How far apart the losses of two runs are at most."""
    pairs = [*zip(one.losses, other.losses), (one.evaluation, other.evaluation)]
    return max(abs(a - b) for a, b in pairs)


def judge_states(problem: Problem, expected: Trajectory, folder: Path, part: str) -> Verdict:
    saved = [(STEPS, folder / "end")]
    if part == "train":
        saved.insert(0, (SAVED_AT, folder / "saved"))
    for steps, place in saved:
        try:
            state = read_state(place)
        except (StepladderError, StopIteration, ValueError, KeyError) as error:
            return Verdict("bug", "unloadable", str(error).partition("\n")[0], stage=part)
        coarse = 1.0 if problem.exact else COARSE
        wrong = compare(
            expected.states[steps], state, expected.start, expected.parameters, coarse=coarse
        )
        if wrong:
            moved = [compare(expected.states[steps], other.states[steps], expected.start,
                             coarse=coarse) for other in rounded(problem)]  # fmt: skip
            if any(far and wrong[1] <= tolerated(problem) * far[1] for far in moved):
                continue
            return Verdict("bug", "difference", f"after {steps} steps {wrong[0]}", stage=part)
    return SAME


def read_state(folder: Path) -> State:
    """Every tensor of the model and its loss in the newest checkpoint of a folder."""
    path = next(iter(find_checkpoints(folder)))
    manifest = read_manifest(path)
    with CheckpointReader(path, manifest) as reader:
        found = {n.removeprefix("model/"): n for n in manifest.tensors if n.startswith("model/")}
        found |= {n.replace("/", ".", 1): n for n in manifest.tensors if n.startswith("loss/")}
        return {name: reader.read(stored) for name, stored in found.items()}


def compare(
    wanted: State,
    got: Mapping[str, Tensor],
    start: State,
    trained: Set[str] = frozenset(),
    *,
    coarse: float = 1.0,
) -> tuple[str, float] | None:
    """The tensor that is farthest off, in words, and by how much; None if all agree.

    Distances are relative to how far the plain run moved that tensor, or the whole model where the
    tensor itself hardly moved.

    Args:
        coarse: by which tolerances are larger, and then relative to the farthest move of any
            tensor: with rounded activations, gradients that cancel out do not.
    """
    names = set(wanted)
    moved = {name: norm(wanted[name], start[name]) for name in names}
    typical = max(moved.values(), default=0.0)
    worst: tuple[str, float] | None = None
    for name in sorted(names):
        if name not in got:
            if not any(
                torch.equal(wanted[name], wanted[other]) for other in got if other in wanted
            ):
                return f"'{name}' is not in the checkpoint", math.inf
            continue
        a, b = wanted[name], got[name]
        # Parameters, and buffers of their type, are stored as the plan says; others as they were.
        cast = name in trained or a.dtype in {wanted[one].dtype for one in trained if one in wanted}
        converted = a.dtype != b.dtype and not cast
        if a.shape != b.shape or converted:
            return (f"'{name}' is {b.dtype} {tuple(b.shape)} instead of {a.dtype} "
                    f"{tuple(a.shape)}", math.inf)  # fmt: skip
        size = norm(a, torch.zeros_like(a))
        distance = max(moved[name], 0.05 * typical if coarse == 1 else typical)
        allowed = coarse * STATE_TOLERANCE * distance + 2e-6 * max(size, 1.0)
        off = norm(a, b)
        if not off <= allowed and (worst is None or off / allowed > worst[1]):
            share = f"{off / moved[name]:.1%} of the way" if moved[name] else "did not move"
            worst = (f"'{name}' is off by {off:.2g} ({share})", off / allowed)
    return worst


def norm(a: Tensor, b: Tensor) -> float:
    wide = torch.complex128 if a.is_complex() else torch.float64
    return (a.to(wide) - b.to(wide)).norm().item() if a.numel() else 0.0
