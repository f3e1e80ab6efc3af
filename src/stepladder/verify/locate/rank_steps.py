"""One rank's steps of a plan, with every tensor held against its part of the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from stepladder.data import Batch
from stepladder.rungs.parameter_shards import ParameterShard, cut, local
from stepladder.rungs.pipeline.pipeline import Pipeline
from stepladder.rungs.pipeline.stage_module import StageModule
from stepladder.seam.modules import is_compiled
from stepladder.train import Run
from stepladder.train.batch_rows import rows_of
from stepladder.train.optimizer.compact.compact_adam import state_of
from stepladder.verify.course import DEPENDS, Course, start

from .comparable import Comparable, comparable_in, comparable_on_stage
from .compare import Finding, compare, compare_unordered
from .portions import Portion
from .reference_steps import file
from .sites import Site
from .taps import Taps

COMPILED = "runs compiled or recorded, and shows no results of its layers"


@dataclass(slots=True)
class RankFindings:
    """What one rank saw of all steps."""

    steps: list[list[Finding]] = field(default_factory=list)
    left_out: dict[Site, str] = field(default_factory=dict)  # and why
    said: tuple[str, ...] = ()  # what the run announced: why its results depend on the plan


def compare_rank(course: Course, folder: Path) -> RankFindings:
    """Train as the plan says, and compare as it goes."""
    run, samples = start(course)
    watch = RankWatch(run, course)
    with run.batches(samples, course.plan.batch.sequences, workers=0) as feed:
        for step, batch in enumerate(islice(feed, course.steps)):
            watch.begin(file(folder, step), batch)
            # As `run.step` does, with a look at the gradients before the optimizer has them.
            run.agree_on_health()
            run.set_rate()
            taken = run.own_batch(batch).to(run.world.device)
            loss = run.gradients(taken)
            watch.see_gradients()
            watch.see_state(run.update(taken, loss).loss)
    said = tuple(line for line in (run.because, *run.events) if DEPENDS in line)
    return replace(watch.found, said=said)


class RankWatch:
    """Hooks on a run, and what they found."""

    def __init__(self, run: Run, course: Course) -> None:
        self.run, self.layout = run, course.plan.layout
        self.place = self.layout.place(run.world.place.rank)
        self.found = RankFindings()
        self.expected: dict[Any, Tensor] = {}
        self.rows: tuple[int, ...] = ()
        self.size = 0
        self.scale = 1.0  # of gradients, by which they are divided
        self.ways = 1  # ranks whose gradients are averaged, and the loss is multiplied by
        self.seen: set[tuple[Site, int]] = set()
        self.passes: dict[int, int] = {}  # of each stage of a pipeline in this step
        self.owed: dict[tuple[Site, int], tuple[Comparable, torch.Size]] = {}  # gradients to come
        how = run.climbed.forward_backward
        hidden = run.settled.records_graphs or any(map(is_compiled, run.module.modules()))
        if hidden:
            self.found.left_out[Site("output", "")] = COMPILED
        elif isinstance(how, Pipeline):
            self.watch_stages(how)
        else:
            self.watch_micro_batches(how)

    def watch_micro_batches(self, how: Any) -> None:
        comparable = comparable_in(self.run.module, self.run.climbed.anatomy, self.layout)
        taps = Taps(self.run.module.named_modules(), partial(self.note, comparable))
        sync = how.gradient_sync

        @contextmanager
        def around(last: bool) -> Iterator[Any]:
            with sync.around_micro_batch(last) as inside, taps.during(len(how.parts)):
                yield inside

        how.gradient_sync = replace(sync, around_micro_batch=around)

    def watch_stages(self, how: Pipeline) -> None:
        for chunk in how.chunks:
            comparable = comparable_on_stage(how, chunk, self.run.climbed.anatomy, self.layout)
            taps = Taps(chunk.view.named_modules(), partial(self.note, comparable))
            chunk.run = partial(run_recorded, self, taps, chunk.run)

    def begin(self, name: Path, batch: Batch) -> None:
        """Before a step: what is expected of it."""
        self.expected = torch.load(name, mmap=True, weights_only=True)
        self.size = batch.size
        index = self.layout.data_index(self.run.world.place.rank)
        self.rows = tuple(map(int, rows_of(self.run.plan, batch.size, index)))
        how = self.run.climbed.forward_backward
        self.scale = self.run.scale.scale.item() if self.run.scale.enabled else 1.0
        self.ways = how.gradient_sync.ways
        self.seen.clear()
        self.passes.clear()
        self.owed.clear()
        self.found.steps.append([])

    def portion(self, micro: int) -> Portion | None:
        """What of the global batch this rank has in a micro-batch; None for one without weight."""
        rows = self.run.micro or len(self.rows)
        mine = self.rows[micro * rows : (micro + 1) * rows]
        if not mine:
            return None
        place, layout = self.place, self.layout
        tokens = (place["context"], layout.context)
        return Portion(mine, self.size, tokens, (place["tensor"], layout.tensor))

    def note(self, comparable: Comparable, site: Site, micro: int, tensor: Tensor) -> None:
        """Compare a tensor of a forward pass, or its gradient, the first time it is there."""
        portion = self.portion(micro)
        if (site, micro) in self.seen or portion is None:
            return
        self.seen.add((site, micro))
        if not comparable.is_here(site, self.expected):
            return
        found = plain(tensor)
        readings = [] if found is None else portion.readings(self.expected[site], found.shape)
        gradient = site.kind == "output gradient"
        known = [one for one in readings if one.by_column or not comparable.may_be_share(site)]
        if found is None or not known:
            self.leave_out(site, f"{tuple(tensor.shape)} is no part of the whole that has a name")
            return
        found = found / (self.scale * self.ways) if gradient else found
        finding = compare(site, micro, found, [one.part for one in known])
        if known[0].merged and not known[0].by_column:
            finding = compare_unordered(finding, found, self.expected[site])
        self.add(finding)
        self.owed.pop((site, micro), None)
        if (
            site.kind == "output"
            and (owed := site._replace(kind="output gradient")) in self.expected
        ):
            self.owed[owed, micro] = comparable, found.shape

    def leave_out(self, site: Site, why: str) -> None:
        self.found.left_out.setdefault(site, why)

    def add(self, finding: Finding) -> None:
        self.found.steps[-1].append(finding)

    def see_gradients(self) -> None:
        """After backward and every reduction, before clipping; one that never came is zero."""
        for (site, micro), (comparable, shape) in list(self.owed.items()):
            self.note(comparable, site, micro, torch.zeros(shape))
        for shard in self.run.climbed.shards:
            shard.take_gradient()
            found = torch.zeros_like(shard.owned) if shard.gradient is None else shard.gradient
            site = Site("gradient", shard.name)
            if shard.gradient is not None or site in self.expected:
                self.hold_against(site, found.detach().to_dense() / self.scale, shard)

    def see_state(self, loss: float) -> None:
        """After the update."""
        found = torch.tensor(loss, dtype=torch.float64)
        self.add(compare(Site("loss", ""), None, found, [self.expected[Site("loss", "")]]))
        run = self.run
        for shard in run.climbed.shards:
            for key, value in state_of(run.optimizer, shard.owned).items():
                if isinstance(value, Tensor):
                    self.hold_against(Site("optimizer state", shard.name, 0, key), value, shard)
        for name, parameter in run.module.named_parameters(remove_duplicate=False):
            whole = ParameterShard(name, parameter, parameter)
            self.hold_against(Site("parameter", name), local(parameter), whole)
        for name, buffer in run.module.named_buffers(remove_duplicate=False):
            whole = ParameterShard(name, buffer, buffer)  # type: ignore[arg-type]
            self.hold_against(Site("buffer", name), local(buffer), whole)

    def hold_against(self, site: Site, found: Tensor, shard: ParameterShard) -> None:
        """Compare what belongs to a parameter with the same part of the reference's."""
        if site not in self.expected:
            self.leave_out(site, "the plain loop has none")
            return
        expected = part_of(self.expected[site], shard)
        if expected.shape != found.shape:
            self.leave_out(site, f"{tuple(found.shape)} is no part of the whole that has a name")
            return
        self.add(compare(site, None, found, [expected]))


def run_recorded(watch: RankWatch, taps: Taps, run: Any, chunk: StageModule) -> Tensor:
    """Run a stage; within a step, with an eye on it."""
    if not torch.is_grad_enabled():
        return run(chunk)
    micro = watch.passes.get(chunk.index, 0)
    watch.passes[chunk.index] = micro + 1
    with taps.during(micro):
        return run(chunk)


def plain(tensor: Tensor) -> Tensor | None:
    """A rank's own numbers; None where they are only a share of a sum."""
    if not isinstance(tensor, DTensor):
        return tensor
    return None if any(p.is_partial() for p in tensor.placements) else tensor.to_local()


def part_of(whole: Tensor, shard: ParameterShard) -> Tensor:
    """This rank's part of what has the parameter's shape; anything else as it is."""
    parameter = shard.parameter
    if whole.shape != parameter.shape:
        return whole
    if isinstance(parameter, DTensor):
        # Nothing is sent: every rank has all of the reference's.
        mesh, placements = parameter.device_mesh, parameter.placements
        there = whole.to(mesh.device_type)
        whole = distribute_tensor(there, mesh, placements, src_data_rank=None).to_local()
    return cut(whole, shard.flat)
