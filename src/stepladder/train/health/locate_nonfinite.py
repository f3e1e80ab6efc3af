"""Where a number that is not finite came from: the rank, the samples, the layer.

A gradient that ranks have added up is bad on all of them, so each rank asks its own passes first:
the loss of every pass was kept on the device. Where a rank holds whole parameters and the batch is
still at hand, it then runs the suspects again row by row, without learning, and sees which module
is the first to put out a number that is not finite. In other layouts a module cannot run without
the other ranks; there the layer is the one whose gradient is bad and lies nearest to the loss.

Ranks leave what they found on the world's board and rank 0 puts it together: no collective, since
a user may read reports on one rank only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.data import Batch, iter_tensors
from stepladder.errors import NonFinite, WorldError
from stepladder.model import evaluating
from stepladder.model.call_module import call
from stepladder.plan import Plan
from stepladder.rungs.accumulate import Accumulate
from stepladder.train.batch_rows import rows_of
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.world import World

from .nonfinite import HALVINGS, Fault, Health, Mark

PATIENCE_SECONDS = 10.0  # for the other ranks' findings; they decide nothing
MOST_ROWS = 64  # that are run again one by one


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank knows of a fault."""

    rank: int
    samples: list[int] = field(default_factory=list)  # positions of its own that were bad
    layer: str = ""  # the first module whose output is not finite
    gradient: str = ""  # the parameter nearest to the loss whose gradient is not finite


@dataclass(frozen=True, slots=True)
class Scene:
    """What a rank needs to look for a fault's cause."""

    module: nn.Module
    accumulate: Accumulate
    world: World
    plan: Plan

    def find(self, fault: Fault, batch: Batch | None) -> Finding:
        """This rank's finding; with the step's batch at hand it may know more."""
        mark, rank = fault.mark, self.world.place.rank
        rows, layer = bad_rows(mark), ""
        if batch is not None and self.can_repeat():
            rows, layer = self.repeat(batch, rows)
        places = rows_of(self.plan, mark.size, self.world.data_index)
        samples = sorted({mark.position + int(places[row]) for row in rows if row < len(places)})
        return Finding(rank, samples, layer, mark.norms.bad_name(last=math.isfinite(fault.loss)))

    def can_repeat(self) -> bool:
        """Whether the module runs on this rank without any other."""
        layout = self.world.layout
        alone = layout.pipeline == layout.context == layout.tensor == 1 and not self.plan.offload
        return alone and not any(isinstance(p, DTensor) for p in self.module.parameters())

    def repeat(self, batch: Batch, rows: Sequence[int]) -> tuple[list[int], str]:
        """The rows that are bad by themselves, and the first layer that is; nothing is learned."""
        suspects = list(rows) or list(range(batch.num_rows))
        bad: list[int] = []
        layers: list[str] = []
        try:
            with evaluating(self.module), untouched(self.world.device), torch.enable_grad():
                for row in suspects[:MOST_ROWS]:
                    found = self.first_bad(batch.rows(slice(row, row + 1)))
                    if found is not None:
                        bad.append(row)
                        layers.append(found)
        except Exception:  # a search for a cause must not hide the fault by one of its own
            pass
        return bad or list(rows), layers[0] if layers else ""

    def first_bad(self, part: Batch) -> str | None:
        """The module that first puts out what is not finite; "" where only gradients are bad."""
        with watching(self.module) as seen, self.accumulate.forward_context():
            outputs = call(self.module, self.accumulate.read_inputs(part.inputs))
            if not self.accumulate.loss.count(part):
                return None
            loss = self.accumulate.loss.mean(outputs, part)
        if seen:
            return f"module '{seen[0]}'"
        if not torch.isfinite(loss):
            return "the loss"
        trained = [p for p in self.module.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return None if all(g is None or bool(torch.isfinite(g).all()) for g in gradients) else ""


def bad_rows(mark: Mark) -> list[int]:
    """The rows of this rank's batch that were in a pass whose loss was not finite."""
    if not mark.parts:
        return []
    losses = torch.stack([loss.float() for _, loss in mark.parts]).tolist()
    found: list[int] = []
    first = 0
    for (count, _), loss in zip(mark.parts, losses):
        if not math.isfinite(loss):
            found += range(first, first + count)
        first += count
    return found


@contextmanager
def watching(module: nn.Module) -> Iterator[list[str]]:
    """The names of modules whose output is not finite, in the order they end."""
    seen: list[str] = []

    def look(name: str) -> Any:
        def hook(part: nn.Module, inputs: Any, outputs: Any) -> None:
            if not all(map(finite, iter_tensors(outputs))):
                seen.append(name)

        return hook

    hooks = [
        part.register_forward_hook(look(name or type(part).__name__))
        for name, part in module.named_modules()
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def answer(faults: Sequence[Fault], scene: Scene, health: Health, batch: Batch | None) -> str:
    """What is to be said of these bad steps and was done about them; raises where that is to stop.

    Args:
        batch: of the last of these steps, where it is at hand.
    """
    fault = faults[0]
    at_hand = batch if batch is not None and batch.position == fault.mark.position else None
    description = share(scene.find(fault, at_hand), fault, scene.world, wanted=health.stops)
    steps = f"step {fault.mark.step}" + (f" and {len(faults) - 1} more" if faults[1:] else "")
    if health.stops:
        raise NonFinite(steps, f"{description}; {LEFT_OUT}", way_out(fault, health))
    done = f"; the learning rate is now {health.factor:g} of its schedule's" * bool(health.halvings)
    return f"{steps}: {description}; the update was left out{done}" if description else ""


LEFT_OUT = "the update was left out and parameters are as before"


def way_out(fault: Fault, health: Health) -> str:
    if health.policy == "backoff":
        tried = f"{HALVINGS} halvings of the learning rate did not help"
        return f"{tried}: look at those samples, or go on from an older checkpoint."
    return (
        f"Lower the learning rate ({fault.mark.lr:g}), set clip, or go on with "
        "nonfinite='skip' or 'backoff'."
    )


def share(finding: Finding, fault: Fault, world: World, *, wanted: bool) -> str:
    """All ranks' findings as one sentence: on rank 0, and where it is wanted on the others too."""
    ranks, note = world.place.num_ranks, f"fault/{fault.mark.step}"
    if ranks == 1:
        return sentence([finding], fault)
    board = world.notes
    board.post(f"{note}/{finding.rank}", json.dumps(asdict(finding)))
    try:
        if not world.is_rank_zero:
            return board.read(note, 2 * PATIENCE_SECONDS) if wanted else ""
        said = [board.take(f"{note}/{rank}", PATIENCE_SECONDS) for rank in range(ranks)]
        description = sentence([Finding(**json.loads(one)) for one in said], fault)
    except WorldError:  # the other ranks do not read this report
        description = sentence([finding], fault)
    if world.is_rank_zero:
        board.post(note, description)
    return description


def sentence(findings: Sequence[Finding], fault: Fault) -> str:
    """Which rank, which samples, which layer."""
    guilty = [one for one in findings if one.samples]
    mark = fault.mark
    if guilty:
        where = ", ".join(f"rank {one.rank} in {named(one.samples)}" for one in guilty)
    else:
        where = f"no rank by itself, samples {mark.position} to {mark.position + mark.size - 1}"
    layer = next((one.layer for one in guilty if one.layer), "")
    gradient = next((one.gradient for one in (*guilty, *findings) if one.gradient), "")
    first = f", first in {layer}" if layer else ""
    bad = f", gradient of '{gradient}' not finite" if gradient else ""
    return f"loss {fault.loss:g}: {where}{first}{bad}"


def named(samples: Sequence[int]) -> str:
    """Positions in the run's data, neighbours together."""
    if len(samples) == 1:
        return f"sample {samples[0]}"
    if samples[-1] - samples[0] == len(samples) - 1:
        return f"samples {samples[0]} to {samples[-1]}"
    shown = ", ".join(map(str, samples[:8]))
    return f"samples {shown}" + (f" and {len(samples) - 8} more" if len(samples) > 8 else "")
