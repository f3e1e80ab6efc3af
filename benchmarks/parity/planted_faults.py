"""Faults of parallel training, planted in the real objects of a run: one module's, on its ranks.

`watch_planted(name, course, folder)` is what each rank does in a search for the first difference,
with the fault in place. A fault that changes what a forward pass computes does so only within the
micro-batches of a step: the trials by which stepladder tests a cut would find many of them first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Replicate

from stepladder.model import build
from stepladder.rungs.accumulate import Accumulate
from stepladder.rungs.pipeline.pipeline import Pipeline
from stepladder.seam.dispatch import in_backward
from stepladder.train import Run, engine
from stepladder.verify import Subject, find_subject
from stepladder.verify.course import Course
from stepladder.verify.locate import rank_steps
from stepladder.verify.locate.rank_steps import RankFindings, compare_rank
from stepladder.world import Place, World

LLAMA = "llama:layers=2,hidden=32,heads=4,vocab=64"
GPT = "gpt:layers=2,hidden=32,heads=4,vocab=64"
SGD, CLIPPED = "sgd lr=0.1", "sgd lr=0.1 clip=0.1"
ADAMW = "adamw lr=1e-2 wd=0.1"
LAST = 1  # the rank that a fault of one rank is planted on

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, and where it must be found."""

    plan: str
    kind: str  # of the tensor that differs first
    module: str  # that computes it
    plant: Callable[[Run], Any] = lambda run: None
    around: Around = nullcontext  # the whole run
    model: str = LLAMA
    optimizer: str = SGD
    rank: int | None = None  # that must be named; None: any


def subject_of(fault: Fault) -> Subject:
    """The model, with random biases: one of zeros would hide where it is added."""
    if fault.model == GPT:
        return Subject("gpt with biases", make_biased)
    return find_subject(fault.model)


def make_biased() -> Any:
    _, samples, loss = find_subject(GPT).make()
    module = build(GPT, sequence=16)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(len(parameter)), alpha=0.1)
    return module, samples, loss


def watch_planted(name: str, course: Course, folder: Path) -> RankFindings:
    fault, start = FAULTS[name], rank_steps.start

    def start_with_fault(course: Course) -> tuple[Run, Any]:
        run, samples = start(course)
        fault.plant(run)
        return run, samples

    with fault.around(), patch.object(rank_steps, "start", start_with_fault):
        return compare_rank(course, folder)


def rank() -> int:
    return Place.from_environment().rank


class Armed:
    """Whether a micro-batch of a step is computed."""

    def __init__(self, run: Run) -> None:
        self.on = False
        how: Any = run.climbed.forward_backward
        if isinstance(how, Pipeline):
            for chunk in how.chunks:
                chunk.run = partial(self.run_stage, chunk.run)
            return
        sync = how.gradient_sync

        @contextmanager
        def around(last: bool) -> Iterator[Any]:
            with sync.around_micro_batch(last) as inside:
                self.on = True
                try:
                    yield inside
                finally:
                    self.on = False

        how.gradient_sync = replace(sync, around_micro_batch=around)

    def run_stage(self, run: Any, chunk: Any) -> Any:
        self.on = torch.is_grad_enabled()
        try:
            return run(chunk)
        finally:
            self.on = False


def output_changed(name: str, change: Callable[[Tensor], Tensor], *ranks: int, again: bool = False):
    """What a module returns, on some ranks or all; `again`: only where it is recomputed."""

    def plant(run: Run) -> None:
        armed = Armed(run)

        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            mine = not ranks or rank() in ranks
            return change(output) if armed.on and mine and in_backward() == again else None

        run.module.get_submodule(name).register_forward_hook(hook)

    return plant


def input_changed(name: str, change: Callable[..., Any], *ranks: int):
    """What a module is given."""

    def plant(run: Run) -> None:
        armed = Armed(run)

        def hook(module: nn.Module, args: Any) -> Any:
            mine = not ranks or rank() in ranks
            return change(*args) if armed.on and mine and not in_backward() else None

        run.module.get_submodule(name).register_forward_pre_hook(hook)

    return plant


def parameter_changed(name: str, change: Callable[[Tensor], Tensor], *ranks: int):
    """A parameter's first values."""

    def plant(run: Run) -> None:
        if rank() in ranks:
            mine = run.module.get_parameter(name)
            with torch.no_grad():
                mine = mine.to_local() if hasattr(mine, "to_local") else mine
                mine.copy_(change(mine.clone()))

    return plant


def reduction_changed(name: str, change: Callable[[Tensor, Tensor], Tensor]):
    """What DDP makes of one parameter's gradient, from the rank's own and the mean of all."""

    def plant(run: Run) -> None:
        target = run.module.get_parameter(name)

        def reduce(state, bucket):  # torch reads the annotations, and knows its own alone
            own = [g.clone() for g in bucket.gradients()]

            def finish(future: Any) -> Tensor:
                whole = future.value()[0].div_(dist.get_world_size())
                for parameter, mean, mine in zip(bucket.parameters(), bucket.gradients(), own):
                    if parameter is target:
                        mean.copy_(change(mine, mean))
                return whole

            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(finish)

        run.climbed.forward_backward.gradient_sync.module.register_comm_hook(None, reduce)

    return plant


def missing_factor(run: Run) -> None:
    """Averaged where it should be added up."""
    how = run.climbed.forward_backward
    how.gradient_sync = replace(how.gradient_sync, ways=1)


def doubled_loss_scale(run: Run) -> None:
    scaled = run.scale.scaled
    run.scale.scaled = lambda loss: 2 * scaled(loss)


def stale_buffer(run: Run) -> None:
    """One rank puts back what a BatchNorm's statistics were before the step."""
    norm: Any = run.module.get_submodule("stem.1")
    before = norm.running_mean.clone()
    if rank() == LAST:
        run.optimizer.register_step_post_hook(lambda *_: norm.running_mean.copy_(before))


def swapped_shards(run: Run) -> None:
    """Each rank holds the other's rows of one matrix."""
    mine = run.module.get_parameter("blocks.0.mlp.up.weight").to_local().detach()
    every = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(every, mine.contiguous())
    mine.copy_(every[1 - rank()])


def stale_gather(run: Run) -> None:
    """A rank goes on with the part of a matrix that it had before the others updated theirs."""
    parameter, publish = (
        run.module.get_parameter("blocks.1.attention.out.weight"),
        run.climbed.publish,
    )

    def late() -> None:
        before = parameter.detach().clone()
        publish()
        if rank() == LAST:
            parameter.data.copy_(before)

    run.climbed = replace(run.climbed, publish=late)


@contextmanager
def own_norm() -> Iterator[None]:
    """The gradient norm of a rank's own slices taken for the whole's."""
    measure = engine.measure_norms

    def alone(shards: Any, world: World) -> Any:
        return measure([replace(shard, axes=()) for shard in shards], world)

    with patch.object(engine, "measure_norms", alone):
        yield


@contextmanager
def lost_clip() -> Iterator[None]:
    update = engine.update
    with patch.object(engine, "update", lambda o, divisor, *rest: update(o, None, *rest)):
        yield


@contextmanager
def weight_changed(weight: Callable[[Accumulate, Any], Any]) -> Iterator[None]:
    """How much a micro-batch counts in the loss."""
    with patch.object(Accumulate, "weight", weight):
        yield


def without_last(how: Accumulate, part: Any, weight: Any = Accumulate.weight) -> Any:
    return 0.0 if len(how.parts) == 3 else weight(how, part)


def all_alike(how: Accumulate, part: Any) -> float:
    return part.num_rows / 16


@contextmanager
def dropped_stage_micro_batch() -> Iterator[None]:
    passes = Pipeline.micro_batches
    with patch.object(Pipeline, "micro_batches", lambda self, batch: passes(self, batch)[:-1]):
        yield


@contextmanager
def same_share() -> Iterator[None]:
    """Every rank reads the first rank's rows."""
    with patch.object(World, "data_index", 0):
        yield


@contextmanager
def share_not_added_up() -> Iterator[None]:
    """Each rank of a cut keeps its own share of the gradient of what all of them hold: norms."""
    local = sys.modules["stepladder.rungs.tensor.local_compute"]
    local_of = local.local_of
    with patch.object(local, "local_of", lambda parameter, shares: local_of(parameter, False)):
        yield


@contextmanager
def gradient_not_added_up() -> Iterator[None]:
    """The gradient of what flows into the first attention stays each rank's own share."""
    home = sys.modules["stepladder.rungs.tensor.tensor_parallel"]
    enter_at, seen = home.enter_at, []

    def enter_first(owner: nn.Module, enter: Any) -> None:
        seen.append(owner)
        own = partial(enter.func, **{**enter.keywords, "gradient": Replicate()})
        enter_at(owner, own if len(seen) == 1 else enter)

    with patch.object(home, "enter_at", enter_first):
        yield


def mixed_state(run: Run) -> None:
    """Two matrices of one shape take each other's first moment."""
    shards = {shard.name: shard.owned for shard in run.climbed.shards}
    one, other = (shards[f"blocks.0.attention.{word}.weight"] for word in ("query", "key"))

    def swap(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        first, second = optimizer.state[one], optimizer.state[other]
        first["exp_avg"], second["exp_avg"] = second["exp_avg"], first["exp_avg"]

    run.optimizer.register_step_post_hook(swap)


def group_changed(name: str, **settings: float):
    """One parameter has settings of its own."""

    def plant(run: Run) -> None:
        (owned,) = [shard.owned for shard in run.climbed.shards if shard.name == name]
        for group in run.optimizer.param_groups:
            kept = [p for p in group["params"] if p is not owned]
            if len(kept) < len(group["params"]):
                group["params"], alone = kept, {**group, "params": [owned]} | settings
        run.optimizer.param_groups.append(alone)

    return plant


def frozen_on_one_rank(run: Run) -> None:
    parameter = run.module.get_parameter("blocks.0.mlp.gate.weight")
    before = parameter.detach().clone()
    if rank() == LAST:
        run.optimizer.register_step_post_hook(lambda *_: parameter.data.copy_(before))


def bias_on_every_rank(run: Run) -> None:
    part: Any = run.module.get_submodule("blocks.0.attention.out")
    part._local_forward = replace(part._local_forward, added_after=frozenset())


def share_not_sent(run: Run) -> None:
    """A row-parallel linear hands on its own share, as if it were the sum."""
    part: Any = run.module.get_submodule("blocks.1.mlp.down")
    work = part._local_forward

    def leave(share: Tensor) -> Tensor:
        return share.chunk(2, 1)[rank()] if whole.on else work.leave(share)

    whole = Armed(run)
    part._local_forward = replace(work, leave=leave)


def stale_receive(run: Run) -> None:
    """A stage computes on what it received for the micro-batch before."""
    before: list[Tensor] = []
    how: Any = run.climbed.forward_backward
    for chunk in how.chunks:
        forward = chunk.forward

        def late(*received: Tensor, forward: Any = forward) -> Tensor:
            if not received or not torch.is_grad_enabled():
                return forward(*received)
            before.append(received[0].detach().clone())
            return forward(received[0] + (before[-2:][0] - received[0]).detach())

        chunk.forward = late


def values_of_others(run: Run) -> None:
    """An attention that takes its keys' values from the neighbour's chunk."""
    armed, part = Armed(run), run.module.get_submodule("blocks.1.attention")
    attend: Any = part.attend

    def mixed(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        return attend(query, key, value.roll(1, 2) if armed.on else value, **how)

    part.attend = mixed


def half_norm(x: Tensor) -> Tensor:
    """What a norm over half of the features makes of a normalised tensor."""
    half = x[..., : x.shape[-1] // 2]
    return x * (half.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def masked(x: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(rank())
    return x * (torch.rand(x.shape, generator=draw) > 0.1) / 0.9


def with_positions_from_zero(heads: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return heads, positions - positions.min()


FAULTS = {
    "dropped reduction of one matrix": Fault(
        "fp32 ddp", "gradient", "blocks.1.mlp.down",
        reduction_changed("blocks.1.mlp.down.weight", lambda own, mean: own),
    ),
    "doubled reduction of one matrix": Fault(
        "fp32 ddp", "gradient", "blocks.0.attention.key",
        reduction_changed("blocks.0.attention.key.weight", lambda own, mean: 2 * mean),
    ),
    "averaged instead of added up": Fault("fp32 zero3", "gradient", "head", missing_factor),
    "wrong loss scale": Fault("fp32 ddp", "output gradient", "loss", doubled_loss_scale),
    "wrong loss scale, fp16": Fault("fp16 ddp", "output gradient", "loss", doubled_loss_scale),
    "wrong weight of micro-batches": Fault(
        "fp32 micro=2 batch=16", "loss", "loss", around=partial(weight_changed, all_alike)
    ),
    "dropped micro-batch": Fault(
        "fp32 micro=4 batch=16", "loss", "loss",
        around=partial(weight_changed, without_last),
    ),
    "dropped micro-batch of a pipeline": Fault(
        "fp32 pipeline=2", "loss", "loss", around=dropped_stage_micro_batch
    ),
    "every rank reads the same rows": Fault(
        "fp32 zero2", "input", "", around=same_share, rank=LAST
    ),
    "other weights on one rank": Fault(
        "fp32 ddp", "output", "blocks.1.attention.value",
        parameter_changed("blocks.1.attention.value.weight", lambda x: 1.01 * x, LAST), rank=LAST,
    ),
    "swapped shards": Fault("fp32 zero3", "output", "blocks.0.mlp.up", swapped_shards),
    "stale parameter gather": Fault(
        "fp32 zero1", "parameter", "blocks.1.attention.out", stale_gather, rank=LAST
    ),
    "parameter frozen on one rank": Fault(
        "fp32 ddp", "parameter", "blocks.0.mlp.gate", frozen_on_one_rank, rank=LAST
    ),
    "stale buffer": Fault(
        "fp32 ddp", "buffer", "stem.1", stale_buffer, model="resnet-tiny", rank=LAST
    ),
    "wrong dropout mask": Fault(
        "fp32 ddp", "output", "blocks.1.dropout", output_changed("blocks.1.dropout", masked, LAST),
        model=GPT, rank=LAST,
    ),
    "norm over half of its features": Fault(
        "fp32 zero3", "output", "blocks.0.mlp_norm", output_changed("blocks.0.mlp_norm", half_norm)
    ),
    "norm of gradients over a rank's own shards": Fault(
        "fp32 zero3", "parameter", "embedding", around=own_norm, optimizer=CLIPPED
    ),
    "lost gradient clipping": Fault(
        "fp32 zero2", "parameter", "embedding", around=lost_clip, optimizer=CLIPPED
    ),
    "optimizer state mixed up": Fault(
        "fp32 zero2", "optimizer state", "blocks.0.attention.query", mixed_state, optimizer=ADAMW
    ),
    "wrong weight decay of one matrix": Fault(
        "fp32 zero1", "parameter", "blocks.1.mlp.gate",
        group_changed("blocks.1.mlp.gate.weight", weight_decay=0.0), optimizer=ADAMW,
    ),
    "wrong weight decay of one matrix, bf16": Fault(
        "bf16 zero3", "parameter", "blocks.1.mlp.gate",
        group_changed("blocks.1.mlp.gate.weight", weight_decay=1.0),
    ),
    "wrong learning rate of one matrix": Fault(
        "fp32 zero3", "parameter", "blocks.0.attention.out",
        group_changed("blocks.0.attention.out.weight", lr=0.05),
    ),
    "detached branch": Fault(
        "fp32 zero2", "output gradient", "blocks.1.mlp",
        input_changed("blocks.1.mlp", lambda x: (x.detach(),)),
    ),
    "other numbers where a block is recomputed": Fault(
        "fp32 zero3 recompute=blocks", "output gradient", "blocks.0.mlp",
        output_changed("blocks.0.mlp.gate", lambda x: 1.01 * x, again=True),
    ),
    "a layer in fewer bits": Fault(
        "fp32 zero3", "output", "blocks.0.mlp.gate",
        output_changed("blocks.0.mlp.gate", lambda x: x.bfloat16().float(), LAST), rank=LAST,
    ),
    "doubled residual": Fault(
        "fp32 ddp", "input", "blocks.0",
        input_changed("blocks.0.mlp_norm", lambda x: (2 * x,)),
    ),
    "swapped heads": Fault(
        "fp32 tensor=2", "output", "blocks.0.attention.key",
        parameter_changed("blocks.0.attention.key.weight", lambda x: x.roll(8, 0), LAST), rank=LAST,
    ),
    "bias added on every rank": Fault(
        "fp32 tensor=2", "output", "blocks.0.attention.out", bias_on_every_rank, model=GPT
    ),
    "sum of shares not made": Fault(
        "fp32 tensor=2", "output", "blocks.1.mlp.down", share_not_sent
    ),
    "gradients of norms not added up": Fault(
        "fp32 tensor=2", "gradient", "blocks.1.mlp_norm", around=share_not_added_up
    ),
    "gradient of a cut layer's input not added up": Fault(
        "fp32 tensor=2", "output gradient", "blocks.0.attention", around=gradient_not_added_up
    ),
    "stage that reads the micro-batch before": Fault(
        "fp32 pipeline=2", "input", "", stale_receive, rank=LAST
    ),
    "wrong rotary offset": Fault(
        "fp32 context=2", "output", "blocks.0.attention.rotary",
        input_changed("blocks.0.attention.rotary", with_positions_from_zero, LAST), rank=LAST,
    ),
    "values of another chunk": Fault(
        "fp32 context=2", "input", "blocks.1.attention", values_of_others
    ),
}  # fmt: skip
