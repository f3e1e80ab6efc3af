"""Checks of the profiled step: the bottleneck, the gradients, the efficiency, torch's own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from stepladder.labs.equipment.counted_machine import WIDTH, Machine, Pending, make_model, make_rows
from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "the longest work is taken for the bottleneck",
        'if name not in ("forward", "backward")',
        "if name",
        "backward is the model's own work",
    ),
    Mistake(
        "the next batch is loaded when it is needed",
        'machine.wait("load", loading)',
        'machine.wait("load", machine.begin_loading())',
        "ticks of a step are spent on waiting for data: begin to load",
    ),
    Mistake(
        "a bucket leaves before all its gradients are there",
        "bucket[-1].register_post_accumulate_grad_hook",
        "bucket[0].register_post_accumulate_grad_hook",
        "left before its gradient was there",
    ),
    Mistake(
        "each message is waited for where it is sent",
        "        self.sent.append((bucket, flat, self.machine.send(flat)))\n",
        "        self.sent.append((bucket, flat, self.machine.send(flat)))\n"
        '        self.machine.wait("gradients", self.sent[-1][-1])\n',
        "ticks of a step are spent on waiting for gradients: wait after backward",
    ),
)
STEPS = 4


def check_the_bottleneck_is_found(lesson: ModuleType) -> None:
    """The bottleneck is where most time goes that is not the model's work."""
    profile = {"load": 5.0, "forward": 16.0, "backward": 32.0, "gradients": 3.0, "log": 9.0}
    found = written(lesson.bottleneck(dict(profile)), "bottleneck")
    expect(
        found not in ("forward", "backward"),
        f"{found} is the model's own work: mend what keeps it from working.",
    )
    expect(found == "log", f"of {profile} you would mend '{found}' first, not 'log'.")


def one_backward(lesson: Any, layers_each: int) -> list[tuple[Tensor, Tensor]]:
    """Gradients after one backward, beside the mean of the ranks' own."""
    machine = Machine()
    model, own = make_model(machine), make_model(Machine())
    buckets = lesson.Buckets(model, machine, layers_each)
    for one in (model, own):
        (one(make_rows(0)) - make_rows(0)).square().mean().backward()
    buckets.finish()
    found = []
    for mine, theirs in zip(model.parameters(), own.parameters()):
        dist.all_reduce(theirs.grad)
        found.append((mine.grad, theirs.grad / dist.get_world_size()))  # type: ignore[operator]
    return found  # type: ignore[return-value]


def check_the_gradients_are_averaged(lesson: ModuleType) -> None:
    """Whatever leaves early, in the end every gradient is the mean over the ranks."""
    for layers_each in (1, 4):
        for layer, (mine, wanted) in enumerate(on_ranks(one_backward, 2, lesson, layers_each)[0]):
            expect(
                mine.any(),
                f"layer {layer}'s bucket left before its gradient was there: hook the weight whose "
                "gradient comes last.",
            )
            expect_close(mine, wanted, f"layer {layer}'s gradient, {layers_each} to a bucket")


def check_the_efficiency(lesson: ModuleType) -> None:
    """Over 90 % of the time is spent on the model."""
    machine, _ = on_ranks(lesson.train, 2, 2, STEPS)[0]
    spent = {name: machine.ticks[name] / STEPS for name in ("load", "gradients")}
    expect(
        spent["load"] <= 1,
        f"{spent['load']:g} ticks of a step are spent on waiting for data: begin to load the next "
        "batch before this one is worked on.",
    )
    expect(
        spent["gradients"] <= 4,
        f"{spent['gradients']:g} ticks of a step are spent on waiting for gradients: wait after "
        "backward, when most have arrived.",
    )
    share = machine.efficiency
    expect(share > 0.9, f"{share:.0%} of the time is spent on the model: over 90 % is possible.")
    for layers_each in (1, 16):
        share = on_ranks(lesson.train, 2, layers_each, STEPS)[0][0].efficiency
        expect(share < 0.85, f"{layers_each} layers to a bucket should stay below 85 %.")


def check_torch_does_the_same(lesson: ModuleType) -> None:
    """DistributedDataParallel, with buckets of two layers, has the weights and the efficiency."""
    machine, mine = on_ranks(lesson.train, 2, 2, STEPS)[0]
    share, theirs = on_ranks(by_torch, 2)[0]
    for weight, wanted in zip(mine, theirs, strict=True):
        expect_close(weight, wanted, "a weight beside DistributedDataParallel's")
    expect_close(machine.efficiency, share, "the efficiency beside torch's", rtol=0.02)


def by_torch() -> tuple[float, list[Tensor]]:
    machine = Machine()
    bare = make_model(machine)
    model = DistributedDataParallel(bare, bucket_cap_mb=2 * WIDTH * WIDTH * 4 / 2**20)
    sent: list[Pending] = []

    def hook(_, bucket):  # bare: DDP cannot read annotations that are text
        sent.append(machine.send(bucket.buffer()))
        return sent[-1].work.get_future().then(lambda done: done.value()[0] / 2)

    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    machine.wait("load", machine.begin_loading())
    for step in range(STEPS):
        if step == 1:
            machine.forget()  # DDP arranges its buckets after the first step
        loading = machine.begin_loading()
        optimizer.zero_grad(set_to_none=False)
        (model(make_rows(step)) - make_rows(step)).square().mean().backward()
        for pending in sent:
            machine.wait("gradients", pending)
        sent.clear()
        optimizer.step()
        machine.wait("load", loading)
    return machine.efficiency, [weight.detach() for weight in bare.parameters()]
