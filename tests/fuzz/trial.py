"""A rank's part of a trial: the problem trained by stepladder, saved, dropped and resumed."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import DataLoader

import stepladder as sl
from stepladder.errors import LostRank, StepladderError, TrainingError
from stepladder.plan.settled import settled_plan
from stepladder.train.flop_rate import FlopRate, Rates

from .problems.data import Pair, make_batches, unpadded
from .problems.losses import NAMED, make_loss
from .problems.module import make_module
from .problems.optimizers import RATES, make_given
from .problems.plans import Layout
from .problems.problem import SAVED_AT, STEPS, Problem

TIMEOUT_SECONDS = 100.0  # for ranks to wait for each other; the runner ends a hang earlier
FUSED_CLASSES = 4  # from so many on a head is fused, where kernels=on; generated ones are small
COUNTED = 8  # one trial in so many counts FLOPs


def run_rank(
    problem: Problem, layout: Layout, folder: str, resume: bool, finished: bool
) -> dict[str, Any]:
    """Train on this rank; what happened as plain values, never an exception.

    Args:
        resume: from the checkpoint after `SAVED_AT` steps instead of from the start.
        finished: save the final state under `folder/end`, to be read and compared.
    """
    record: dict[str, Any] = {"stage": "climb", "losses": [], "steps": 0}
    output = Path(folder) / f"output-{os.environ.get('RANK', 0)}"
    try:
        fused = patch.object(settled_plan, "FUSED_VOCABULARY", FUSED_CLASSES)
        uncounted = flops_uncounted(problem.seed % COUNTED != 0)
        cheap = compiled_cheaply() if "compile=on" in layout.plan else nullcontext()
        unknown = patch.dict(os.environ, XDG_CACHE_HOME=str(folder))  # nothing was tried before
        with output_in(output), fused, uncounted, cheap, unknown:
            train(problem, layout, Path(folder), resume, finished, record)
        record["stage"] = "done"
    except StepladderError as error:
        kind = "lost" if isinstance(error, LostRank | TrainingError) else "refused"
        record[kind] = str(error)
        record["error"] = traceback.format_exc()
    except Exception as error:
        record["raw"] = f"{type(error).__name__}: {error}"
        record["error"] = traceback.format_exc()
    return record


def train(
    problem: Problem, layout: Layout, folder: Path, resume: bool, finished: bool, record: Any
) -> None:
    module = make_module(problem.module, problem.seed)
    *batches, evaluated = make_batches(problem.module, problem.data, problem.seed)
    rank = int(os.environ.get("RANK", 0))
    if problem.data.get("apart") and rank:  # all ranks must start from rank 0's weights
        nn.init.normal_(module.head.weight)
    loss = loss_for(problem, module)
    run = sl.climb(
        module,
        loss=loss,
        **learning(problem, module, loss),
        plan=layout.plan,
        # An automatic plan is tried on it, or else on the first step's batch.
        sample=None if "auto" in layout.plan and problem.seed % 2 else given(problem, batches[0]),
        device="cpu",
        timeout_seconds=TIMEOUT_SECONDS,
    )
    record["said"] = [run.because, *run.events]
    if resume:
        record["stage"] = "load"
        run.load(folder / "saved")
    start = SAVED_AT if resume else 0
    losses = take_steps(problem, run, layout, batches, start)
    for index in range(start, STEPS):
        record["stage"] = f"step {index - start}"
        record["losses"].append(next(losses))
        record["steps"] += 1
        if index + 1 == SAVED_AT:
            record["stage"] = "save"
            run.save(folder / "saved")
    record["stage"] = "evaluate"
    rows = "global" if layout.ways > 1 else None
    record["evaluation"] = run.evaluate([given(problem, evaluated)], rows=rows)
    if finished:
        record["stage"] = "save"
        run.save(folder / "end")


def learning(problem: Problem, module: nn.Module, loss: Any) -> dict[str, Any]:
    """The optimizer and the learning rate as `climb` takes them."""
    how = problem.optimizer
    rate = {"rate": RATES[how["rate"]]} if "rate" in how else {}
    if "given" not in how:
        return {"optimizer": problem.optimizer_text, **rate}
    parts = [module, loss] if isinstance(loss, nn.Module) else [module]
    # A loss may share parameters with the module.
    members = dict.fromkeys(p for part in parts for p in part.parameters() if p.requires_grad)
    return {"optimizer": make_given(how, members), "clip": how.get("clip"), **rate}


def flops_uncounted(left_out: bool) -> AbstractContextManager[Any]:
    """Without the count of FLOPs that a report needs: most of what so small a run takes."""
    nothing = patch.object(FlopRate, "over", lambda self, seconds, batch: Rates())
    return nothing if left_out else nullcontext()


@contextmanager
def compiled_cheaply() -> Iterator[None]:
    """Compiled parts are traced, decomposed and differentiated as always; no code is generated."""
    compile = nn.Module.compile

    def traced(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        compile(module, backend="aot_eager_decomp_partition")

    with patch.object(nn.Module, "compile", traced):
        try:
            yield
        finally:
            torch.compiler.reset()


def loss_for(problem: Problem, module: nn.Module) -> Any:
    """The loss as it is given to `climb`."""
    if problem.loss["type"] in NAMED:
        return problem.loss["type"]
    made = make_loss(problem.loss, module, problem.module["classes"])
    if problem.loss["type"] == "own":
        module.criterion = made
        return None
    return made


def given(problem: Problem, batch: Pair) -> Any:
    """A batch as `step` takes it: a pair, or a dict for a module that computes its own loss."""
    if problem.loss["type"] == "own":
        return {"inputs": batch[0], "labels": batch[1]}
    return batch


def take_steps(
    problem: Problem, run: Any, layout: Layout, batches: list[Pair], start: int
) -> Iterator[float]:
    """The loss of each step, taken as it is asked for."""
    if problem.data["feed"] == "loader":
        samples = [given(problem, row) for batch in batches[start:] for row in zip(*batch)]
        loader = DataLoader(samples, batch_size=len(batches[0][0]))
        for report in sl.fit(run, loader):
            yield report.loss
        return
    for batch, rows in feed(problem, run, layout, batches, start):
        yield run.step(batch, rows=rows).loss


def feed(problem: Problem, run: Any, layout: Layout, batches: list[Pair], start: int) -> Any:
    """What each step is given, and whose rows they are, as the problem says."""
    how = problem.data["feed"]
    if how in ("batches", "ragged"):
        pairs = [row for batch in batches for row in zip(*batch)]
        pairs = [unpadded(*row) for row in pairs] if how == "ragged" else pairs
        samples = [given(problem, row) for row in pairs]
        read = run.batches(samples, size=len(batches[0][0]), shuffle=False, uneven=True, workers=0)
        for batch in read:
            yield batch, None
        return
    for batch in batches[start:]:
        if how == "rank" and layout.ways > 1:
            part = rows_of(len(batch[0]), run.world.data_index, layout.ways)
            yield given(problem, tuple(tensor[part] for tensor in batch)), "rank"
        else:
            yield given(problem, batch), "global" if layout.ways > 1 else None


def rows_of(rows: int, index: int, ways: int) -> slice:
    """This rank's rows: contiguous, and a row more for the first ranks where they do not divide."""
    least, more = divmod(rows, ways)
    first = index * least + min(index, more)
    return slice(first, first + least + (index < more))


@contextmanager
def output_in(file: Path) -> Iterator[None]:
    """What torch and gloo print about a trial is read only where a rank dies."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    for stream, _ in kept:
        os.dup2(opened, stream)
    os.close(opened)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for stream, before in kept:
            os.dup2(before, stream)
            os.close(before)
