"""How a run fares: steps that were not finite, losses that jumped, and what is done about them.

[Note: looking later] A step leaves marks on the device and nobody waits for them. Whoever reads a
report, or saves, looks at all marks up to there in one transfer, so that a bad step is found
whether or not its own report is ever read. The device has left out its update by itself.

Three policies answer a loss or gradient that is not finite. `stop` raises. `skip` goes on with the
next batch. `backoff` goes on with half the learning rate: each look that finds a bad step halves it
once more, 100 good steps in a row double it again up to what the schedule says, and a bad step
after 8 halvings stops the run. All three follow from numbers that all ranks agree on.

Overflows while fp16 looks for its loss scale are none of this: the scale is halved and that is all.
They become so where the loss itself is not finite, or the scale has come down to 1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import PlanError, nearest
from stepladder.plan.recipe import NONFINITE
from stepladder.train.optimizer.gradient_norm import Norms

from .loss_spikes import SpikeWatch

HALVINGS = 8  # of the rate, before a run is given up
RECOVERY = 100  # good steps in a row that double it again
UNREAD = 1024  # marks that are kept for a user who never reads a report


@dataclass(frozen=True, slots=True)
class Mark:
    """What a step leaves on the device for whoever looks later."""

    step: int
    position: int  # of its first sample
    size: int
    lr: float
    loss: Tensor
    norms: Norms
    scale: Tensor | None
    parts: Sequence[tuple[int, Tensor]]  # of each pass of this rank: its rows and its loss


@dataclass(frozen=True, slots=True)
class Fault:
    """A step whose loss or gradient was not finite."""

    mark: Mark
    loss: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The batches of the run that was saved, for the first step that goes on from there."""

    name: str  # of the checkpoint
    rows: int
    events: list[str]

    def compare(self, rows: int) -> None:
        if self.rows and rows != self.rows:
            self.events.append(
                f"a batch had {self.rows} rows when {self.name} was saved and has {rows} now"
            )


@dataclass(slots=True)
class Health:
    policy: str = "stop"
    halvings: int = 0  # of the learning rate, now
    spent: bool = False  # a bad step came after the last halving
    calm: int = 0  # good steps since the last bad one, or since the rate was doubled
    rewinds: int = 0  # times the run went back because of a spike
    spikes: SpikeWatch = field(default_factory=SpikeWatch)
    jumps: list[tuple[int, str]] = field(default_factory=list)  # spikes nobody asked for yet
    faults: list[Fault] = field(default_factory=list)  # bad steps nobody answered yet
    unread: deque[Mark] = field(default_factory=lambda: deque(maxlen=UNREAD))
    rows: int = 0  # of the last step's global batch
    resumed: Resumed | None = None  # until the first step after that
    loads: int = 0  # checkpoints that the run went on from

    def __post_init__(self) -> None:
        if self.policy not in NONFINITE:
            problem = f"'{self.policy}' is not a policy"
            raise PlanError("nonfinite", problem, nearest(str(self.policy), NONFINITE))

    @property
    def stops(self) -> bool:
        """Whether a bad step ends the run."""
        return self.policy == "stop" or self.spent

    @property
    def factor(self) -> float:
        """What the schedule's learning rate is multiplied by."""
        return 0.5**self.halvings

    def note(self, mark: Mark) -> None:
        self.unread.append(mark)
        self.rows = mark.size
        if self.resumed is not None:
            self.resumed.compare(mark.size)
            self.resumed = None

    def look(self, last: int | None = None) -> None:
        """Learn how the steps up to `last` went. Waits for the device."""
        due: list[Mark] = []
        while self.unread and (last is None or self.unread[0].step <= last):
            due.append(self.unread.popleft())
        if not due:
            return
        columns = [(m.loss, m.norms.whole, m.loss if m.scale is None else m.scale) for m in due]
        numbers = torch.stack([one.float() for row in columns for one in row]).tolist()
        for index, mark in enumerate(due):
            loss, norm, scale = numbers[3 * index : 3 * index + 3]
            self._see(mark, loss, norm, None if mark.scale is None else scale)
        if self.faults and self.faults[-1].mark.step >= due[0].step and self.policy == "backoff":
            self.spent = self.halvings == HALVINGS
            self.halvings += not self.spent

    def _see(self, mark: Mark, loss: float, norm: float, scale: float | None) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            self.calm += 1
            if self.halvings and self.calm >= RECOVERY:
                self.halvings, self.calm = self.halvings - 1, 0
            if jump := self.spikes.see(loss):
                self.jumps.append((mark.step, jump))
            return
        searching = scale is not None and scale > 1 and math.isfinite(loss)
        if not searching:
            self.calm = 0
            self.faults.append(Fault(mark, loss))

    def take_faults(self) -> list[Fault]:
        """The bad steps found since this was last asked."""
        found, self.faults = self.faults, []
        return found

    def take_jumps(self) -> list[tuple[int, str]]:
        """The spikes found since this was last asked, each with its step."""
        found, self.jumps = self.jumps, []
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know to decide as this one would."""
        return {
            "halvings": self.halvings,
            "calm": self.calm,
            "rewinds": self.rewinds,
            "losses": list(self.spikes.losses),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; a checkpoint of before there was any begins afresh."""
        self.halvings, self.calm = state.get("halvings", 0), state.get("calm", 0)
        self.rewinds = state.get("rewinds", 0)
        self.loads += 1
        self.spikes.forget()
        self.spikes.losses.extend(state.get("losses", ()))
        self.unread.clear()
        self.jumps.clear()
        self.faults.clear()
