"""One optimizer step, and what it needs held between steps.

`step` never waits for the device: the report it returns does, when its numbers are read. A
step that runs out of memory is taken again from its start with half the micro-batch; no gradient
of the failed try survives, so no sample is lost or counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stepladder.data import Batch
from stepladder.errors import TrainingError
from stepladder.loss.left_out_targets import refuse_left_out
from stepladder.model.training_mode import start_training
from stepladder.plan import Plan, Rate, SettledPlan
from stepladder.record import Report
from stepladder.rungs import Climbed, LossScale, float32_matmul_mode, is_out_of_memory
from stepladder.rungs.accumulate import Context
from stepladder.train.checkpointing.async_copy import Copying
from stepladder.train.checkpointing.attribute_state import AttributeState
from stepladder.train.checkpointing.registry import Registry
from stepladder.train.data_loader.loader_position import LoaderPosition
from stepladder.train.data_loader.shard_loader import shard_batches
from stepladder.train.health.frozen_parameters import Frozen, refuse_unfrozen
from stepladder.train.health.locate_nonfinite import Scene, answer
from stepladder.train.health.nonfinite import Health, Mark
from stepladder.train.health.out_of_memory import (
    drop_gradients,
    explain_failure,
    memory_in_use,
    release,
    report_to_ranks,
    reported_out_of_memory,
)
from stepladder.train.health.plan_errors import raise_explained
from stepladder.train.health.recheck import Recheck
from stepladder.train.health.running_statistics import Statistics
from stepladder.train.optimizer.build_optimizer import update
from stepladder.train.optimizer.gradient_norm import Measure, measure_norms
from stepladder.train.optimizer.learning_rates import set_rate, set_rate_by_hand
from stepladder.train.optimizer.schedules import RateFunction, Scheduler
from stepladder.train.reporting.step_clock import Clock
from stepladder.train.reporting.step_report import Applied, Taken, read_report
from stepladder.world import World, deterministic, device_memory_bytes, seed_generators
from stepladder.world.seed import host_generator_kept, one_thread

from .flop_rate import FlopRate
from .module_inputs import ModuleInputs
from .peak_memory import PeakMemory
from .pending_report import PendingReport
from .step_batch import Rows, rank_batch, set_micro_batch


@dataclass(slots=True)
class Engine:
    """Takes steps: everything that changes from one to the next is here."""

    settled: SettledPlan
    world: World
    climbed: Climbed
    optimizer: torch.optim.Optimizer
    scale: LossScale
    rate: Rate | RateFunction
    flops: FlopRate
    scheduler: Scheduler | None = None  # torch's, in place of `rate`
    inputs: ModuleInputs = field(default_factory=ModuleInputs)
    seed: int = 0
    evaluated: tuple[str, ...] = ()  # submodules that stay in evaluation mode while others train
    health: Health = field(default_factory=Health)
    index: int = 0  # steps taken
    position: int = 0  # samples consumed
    clock: Clock = field(default_factory=Clock)
    peak: PeakMemory = field(default_factory=PeakMemory)
    recheck: Recheck = field(default_factory=Recheck)  # steps that are taken twice
    statistics: Statistics | None = None  # of the layers, where a bad step does not end the run
    copying: Copying | None = None  # of a save: what it has not copied yet must not change
    reading: LoaderPosition = field(default_factory=LoaderPosition)  # where it is in a DataLoader
    registry: Registry = field(default_factory=Registry)  # objects that are saved with the run
    held: AttributeState = field(default_factory=AttributeState)  # what no state_dict holds
    events: list[str] = field(default_factory=list)  # what a step's numbers do not say
    frozen: Frozen = ()  # parameters that no optimizer has
    averaged: int = 0  # blocks, one in the other, in which its weights are averages
    measure: Measure = measure_norms
    around_pass: Context = nullcontext  # of a step: the update may be inside backward

    @property
    def plan(self) -> Plan:
        return self.settled.plan

    @property
    def module(self) -> nn.Module:
        """The user's module, for saving and sampling."""
        return self.climbed.module

    @property
    def lr(self) -> float:
        """Of the next step, for parameters without a factor of their own."""
        return self.set_rate() * self.health.factor

    @lr.setter
    def lr(self, value: float) -> None:
        set_rate_by_hand(self.optimizer, value, self.scheduler or self.rate)

    def set_rate(self) -> float:
        """Have the optimizer's learning rates be those of the next step, before any backoff."""
        if self.scheduler is not None:
            self.scheduler.check()
        top, share = self.plan.optimizer.lr, self.rate.factor(self.index)
        return set_rate(self.optimizer, top, share, self.rate)

    @property
    def micro(self) -> int | None:
        """Rows of one pass, as the plan says or as memory allowed."""
        return self.climbed.forward_backward.micro

    def step(self, batch: Any, *, rows: Rows | None = None) -> PendingReport:
        """Learn from one global batch; `Run.step` says what it may be."""
        with self.world.explain_hangs(), self.world.during_step(), self.clock.compiling(self):
            return self._step(batch, rows)

    def check_weights(self, call: str) -> None:
        """Refuse what would learn from averages, or be lost when they go."""
        if self.averaged:
            problem = f"{call} was called inside applied(), where the weights are averages"
            raise TrainingError("ema", problem, "Call it after the block.")

    def _step(self, batch: Any, rows: Rows | None) -> PendingReport:
        self.check_weights("step")
        refuse_unfrozen(self.frozen)
        self.agree_on_health()
        self.set_rate()  # refused before anything is computed, where two schedules set it
        taken = self.own_batch(batch, rows)
        self.events += [f"step {self.index}: {sentence}" for sentence in taken.skipped]
        taken = taken.to(self.world.device, non_blocking=True)
        if self.statistics is None and self.health.policy != "stop":
            self.statistics = Statistics(self.module)
        try:
            if self.recheck.due(self.plan.recheck, self.index):
                return self.record(taken, *self.recheck.take(self, taken))
            return self.update(taken, self.gradients(taken, self.around_pass))
        except RuntimeError as cut:
            if short := reported_out_of_memory(self.world):  # on a rank, which is not lost then
                raise short from cut
            raise

    def agree_on_health(self) -> None:
        """On several ranks, look at the steps so far on each of them, whoever reads reports.

        The rate of "backoff" then follows from numbers that all ranks have, and with "stop" no rank
        waits for one whose report raised. There a GPU's last step is looked at one step later.
        """
        if self.settled.one_rank or self.health.policy == "skip":
            return
        unfinished = self.health.policy == "stop" and self.world.device.type != "cpu"
        self.look(last=self.index - 2 if unfinished else None)

    def own_batch(self, batch: Any, rows: Rows | None = None) -> Batch:
        """This rank's part of the global batch that comes next in the run."""
        world, gather = self.world, self.world.gather_counts
        made = rank_batch(batch, self.position, self.plan, world.data_index, rows, gather)
        made = self.inputs.arrange(made, self.events)
        made = made.narrow() if self.climbed.narrows else made
        loss = self.climbed.forward_backward.loss
        refuse_left_out(loss.weighting, made, gather)
        return loss.weigh(made)

    def shard(
        self, batches: Iterable[Any], rows: Rows | None = None, *, start: int = 0
    ) -> Iterable[Any]:
        """These batches; of a DataLoader that several ranks share, this rank's part of each."""
        return shard_batches(batches, rows, self.plan, self.world, self.seed, start)

    def gradients(self, batch: Batch, around: Context = nullcontext) -> torch.Tensor:
        """Fill `.grad` from a batch; its mean loss comes back, still on the device."""
        if not self.module.training:
            start_training(self.module, self.evaluated)
        set_micro_batch(self.climbed.forward_backward, self.settled, batch)
        with (
            host_generator_kept(),
            deterministic(self.settled.deterministic, lenient=self.settled.lenient),
            one_thread(bool(self.settled.slices) and self.world.device.type == "cpu"),
            float32_matmul_mode(self.plan.precision, self.world.device),
            # On this thread: another would find none of Python's work in its own core's cache.
            torch.autograd.set_multithreading_enabled(False),
        ):
            while True:
                try:
                    self.climbed.forward_backward.settle_loss(batch)
                    self.climbed.settle_compiled(lambda: self._pass(batch))
                    with around():
                        return self._pass(batch)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise_explained(
                            error, self.module, self.plan, batch, self.micro, self.world.device,
                            narrows=self.climbed.narrows,
                        )  # fmt: skip
                    limit = self.plan.memory_bytes or device_memory_bytes(self.world.device)
                    held = memory_in_use(self.module, self.optimizer, self.world.device, limit)
                # Outside the handler, whose traceback keeps the try's activations alive.
                release(self.climbed.shards, self.world.device)
                if not (one := self.settled.one_rank) or not self._shrink(batch.num_rows):
                    short = explain_failure(self, held, limit, batch)
                    if not one:
                        raise report_to_ranks(
                            self.world, self.index, self.micro, batch.num_rows, short,
                            shrinks=not self.settled.slices,
                        )  # fmt: skip
                    raise short

    def _shrink(self, rows: int) -> bool:
        """Halve the micro-batch; False at one row, and where a step needs its rows at once."""
        parts = self.climbed.forward_backward
        now = min(parts.micro or rows, rows)
        if now <= 1 or self.settled.takes_rows_at_once:
            return False
        parts.micro = (now + 1) // 2
        lacking = f"out of memory with micro-batches of {now}; going on with {parts.micro}"
        self.events.append(f"step {self.index}: {lacking}")
        return True

    def _pass(self, batch: Batch) -> torch.Tensor:
        # From the seed and the step alone, so that a resumed or retried step draws the same.
        place = self.world.layout.place(self.world.place.rank)
        stage = (place["pipeline"],) if self.world.layout.pipeline > 1 else ()
        seed_generators(self.world.device, self.seed, self.index, self.world.data_index, *stage)
        # Another run's loss may have gone through this module, as through a discriminator.
        drop_gradients(self.climbed.shards)
        return self.climbed.gradients(batch, self.scale.scaled, (self.seed, self.index))

    def update(self, batch: Batch, loss: torch.Tensor) -> PendingReport:
        """Let the optimizer use the gradients, then clear them."""
        return self.record(batch, loss, self.apply(loss))

    def apply(self, loss: torch.Tensor) -> Applied:
        """What `update` does to parameters; the step is not counted yet."""
        self.hold()
        for shard in self.climbed.shards:
            shard.take_gradient()
        norms = self.measure(self.climbed.shards, self.world)
        bad, lr, clip = norms.bad(loss), self.lr, self.plan.optimizer.clip
        # Nothing to divide by saves a pass that writes every gradient back.
        divided = clip is not None or self.scale.enabled
        divisor = norms.divisor(self.scale.scale, clip) if divided else None
        scale = None if self.scale.value is None else self.scale.value.clone()
        update(self.optimizer, divisor, bad, self.health.factor)
        self.climbed.publish()
        self.scale.update(bad)
        drop_gradients(self.climbed.shards)
        return Applied(norms, lr, scale)

    def record(self, batch: Batch, loss: torch.Tensor, applied: Applied) -> PendingReport:
        """Count the step, and leave on the device what is to be read of it."""
        passes, fullest = self.climbed.forward_backward, self.peak.exchange(self.world)
        tokens, terms = passes.total, passes.terms.sums
        norms, lr, scale = applied.norms, applied.lr, applied.scale
        load = self.climbed.routers.of_batch() if self.climbed.routers else None
        taken = Taken(self.index, batch, loss, tokens, norms, lr, scale, fullest, terms, load)
        parts, passes.parts = passes.parts, []
        mark = Mark(self.index, batch.position, batch.size, lr, loss, norms, scale, parts)
        self.health.note(mark)
        self.index += 1
        self.position = self.reading.advance(self.position, batch)
        if self.scheduler is not None:
            self.scheduler.advance()
        return PendingReport(taken.step, lambda: self._read(taken), self.flops.later(batch))

    def hold(self) -> None:
        """Wait until a save in the background has copied what is about to change."""
        if self.copying is not None:
            self.copying.hold()
            self.copying = None

    def look_back(self, last: int | None = None) -> None:
        """Learn how the steps up to `last` went: see [Note: looking later] in health.py."""
        self.health.look(last)
        if self.statistics is not None:
            self.statistics.mend(self.module)

    def look(self, taken: Taken | None = None, last: int | None = None) -> None:
        """See how the steps up to this one went, or all of them, and answer what is found."""
        self.look_back(taken.step if taken else last)
        batch = taken.batch if taken else None
        faults = self.health.take_faults()
        if faults and (event := answer(faults, self.scene, self.health, batch)):
            self.events.append(event)

    @property
    def scene(self) -> Scene:
        return Scene(self.module, self.climbed.forward_backward, self.world, self.plan)

    def _read(self, taken: Taken) -> Report:
        return read_report(taken, lambda: self.look(taken), self.clock, self.world)
