"""The memory timeline of one step, by owner, with a point for every allocation and free.

The ledger's diary is replayed once the step is over, when it is known who held what. On a GPU the
allocator keeps a history of its own, which also has what kernels take for themselves; its curve
stands beside the ledger's, and its snapshot can be kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from stepladder.record import Memory
from stepladder.seam import cuda
from stepladder.seam.dispatch import in_backward

from .memory_by_owner import MemoryMeter
from .storage_ledger import FOREVER

POINTS = 400  # of a curve that is drawn or kept
HISTORY = 100_000  # events of the allocator
HELD = 8  # holders named at the peak


@dataclass(frozen=True, slots=True)
class Holder:
    """A module, or a kind of state, with what it held at the peak."""

    name: str
    owner: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Memory by owner at every moment of one step."""

    owners: dict[str, list[int]]  # bytes at each point
    moments: list[float]  # of each point, as a share of the step's births and deaths
    marks: dict[str, float]  # where backward and the update begin, and the peak
    memory: Memory  # at the peak
    at: dict[str, Memory]  # at each mark
    holders: tuple[Holder, ...]  # at the peak, largest first
    peak_phase: str
    allocator: list[tuple[float, int]] = field(default_factory=list)  # bytes by its own history
    files: tuple[str, ...] = ()

    def describe_peak(self) -> str:
        """When the peak was, and who held it."""
        held = ", ".join(f"{h.name} {h.num_bytes / 2**20:.1f} MiB" for h in self.holders[:3])
        return (
            f"the peak of {self.memory.peak_bytes / 2**20:.1f} MiB is in {self.peak_phase}: {held}"
        )


def record_timeline(
    step: Callable[[], Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    vocab: int | None = None,
    snapshot: Path | None = None,
) -> MemoryTimeline:
    """Watch one step; on a GPU keep the allocator's snapshot where asked to."""
    places = Places(module)
    updates: list[int] = []
    with places.followed(), allocator_history(device, snapshot) as history:
        meter = MemoryMeter(module, optimizer, device, vocab=vocab, where=places.now)
        hook = optimizer.register_step_pre_hook(lambda *_: updates.append(meter.ledger.moment))
        try:
            with meter:
                step()
        finally:
            hook.remove()
    return replay(meter, updates, history)


class Places:
    """Which module is at work, by name; forward only, since hooks on gradients keep tensors."""

    def __init__(self, module: nn.Module) -> None:
        self.names = {
            id(part): name or type(part).__name__ for name, part in module.named_modules()
        }
        self.stack: list[str] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        def enter(part: nn.Module, _: Any) -> None:
            self.stack.append(self.names.get(id(part), type(part).__name__))

        def leave(*_: Any) -> None:
            self.stack.pop()

        hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def now(self) -> str:
        if self.stack:
            return self.stack[-1]
        return "backward" if in_backward() else "outside modules"


@contextmanager
def allocator_history(device: torch.device, snapshot: Path | None) -> Iterator[dict[str, Any]]:
    """The allocator's own diary, in `events` and `base` afterwards; empty off a GPU."""
    found: dict[str, Any] = {}
    if device.type != "cuda" or not cuda.records_allocations():
        yield found
        return
    torch.cuda.synchronize(device)
    base = torch.cuda.memory_allocated(device)
    cuda.start_history(HISTORY)
    try:
        yield found
        torch.cuda.synchronize(device)
        found.update(base=base, events=cuda.allocation_events(device))
        if snapshot is not None:
            snapshot.parent.mkdir(parents=True, exist_ok=True)
            cuda.write_history(snapshot)
            found["file"] = str(snapshot)
    finally:
        cuda.stop_history()


def allocator_curve(base: int, events: list[dict[str, Any]]) -> list[tuple[float, int]]:
    """Allocated bytes after each event of the allocator's history, thinned to its peaks."""
    sizes, held = [], base
    for event in events:
        if event["action"] == "alloc":
            held += event["size"]
        elif event["action"] == "free_completed":
            held -= event["size"]
        else:
            continue
        sizes.append(held)
    return [(at / max(len(sizes) - 1, 1), sizes[at]) for at in thinned(sizes)]


def replay(meter: MemoryMeter, updates: list[int], history: dict[str, Any]) -> MemoryTimeline:
    ledger = meter.ledger
    last = max(ledger.moment, 1)
    owners = [(life, meter.owner_of(life)) for life in ledger.lives]
    changes: list[Counter[str]] = [Counter() for _ in range(last + 2)]
    for life, owner in owners:
        changes[min(life.born, last)][owner] += life.num_bytes
        if life.died < FOREVER:
            changes[min(life.died, last + 1)][owner] -= life.num_bytes
    curve, now = [], Counter[str]()
    for change in changes[: last + 1]:
        now.update(change)
        curve.append(dict(now))
    marks = {"start": 0}
    if ledger.backwards:
        marks["backward"] = ledger.backwards[0]
    if updates:
        marks["update"] = updates[-1]
    marks["peak"] = ledger.peak_moment
    points = thinned([sum(sizes.values()) for sizes in curve])
    names = sorted({owner for _, owner in owners})
    files = (history["file"],) if "file" in history else ()
    return MemoryTimeline(
        owners={name: [curve[at].get(name, 0) for at in points] for name in names},
        moments=[at / last for at in points],
        marks={name: at / last for name, at in marks.items()},
        memory=meter.memory,
        at={
            name: Memory(**{k: v for k, v in curve[at].items() if v}) for name, at in marks.items()
        },
        holders=holders_of(meter),
        peak_phase=phase_of(ledger.peak_moment, marks),
        allocator=allocator_curve(history["base"], history["events"]) if history else [],
        files=files,
    )


def thinned(sizes: list[int]) -> list[int]:
    """Indices of at most POINTS readings that keep every stretch's highest."""
    stride = -(-len(sizes) // POINTS)
    stretches = (range(at, min(at + stride, len(sizes))) for at in range(0, len(sizes), stride))
    return [max(stretch, key=lambda at: sizes[at]) for stretch in stretches]


def phase_of(moment: int, marks: dict[str, int]) -> str:
    if moment >= marks.get("update", FOREVER):
        return "the update"
    return "backward" if moment >= marks.get("backward", FOREVER) else "forward"


def holders_of(meter: MemoryMeter) -> tuple[Holder, ...]:
    """Who held the memory at the peak: state by its kind, the rest by the module that made it."""
    sizes: Counter[tuple[str, str]] = Counter()
    for life in meter.ledger.at_peak():
        owner = meter.owner_of(life)
        state = owner in ("parameters", "gradients", "optimizer")
        sizes[owner if state or not life.place else life.place, owner] += life.num_bytes
    return tuple(Holder(name, owner, size) for (name, owner), size in sizes.most_common(HELD))
