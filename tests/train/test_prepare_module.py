"""What climb refuses of a module before any rung, and what it prepares."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DataParallel

from stepladder.errors import ModelError
from stepladder.model import copy_module
from stepladder.train import climb

BATCH = torch.randn(4, 3), torch.randint(0, 2, (4,))


def start(module, **options):
    return climb(module, loss="cross_entropy", plan="fp32", device="cpu", **options)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            DataParallel(nn.Linear(3, 2)),
            "DataParallel: already spreads the model over devices. "
            "Give the module inside it: .module.",
        ),
        (
            nn.Sequential(nn.LazyLinear(2)),
            "model.0: has no parameters until it reads a batch. "
            "Give climb sample=batch, or call the module once before.",
        ),
        (
            nn.Linear(3, 2).requires_grad_(False),
            "Linear: has no trainable parameter. Unfreeze at least one.",
        ),
    ],
)
def test_a_module_that_no_rung_can_train_is_refused(module, line):
    with pytest.raises(ModelError) as raised:
        start(module)
    assert str(raised.value) == line


def test_lazy_parts_are_made_from_the_sample_and_nothing_else_changes():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.LazyLinear(2), nn.Dropout(0.5))
    module[2].eval()
    start(module, sample=BATCH)
    assert module[1].weight.shape == (2, 3)
    assert module[0].num_batches_tracked == 0 and module[0].running_mean.eq(0).all()
    assert [part.training for part in module] == [True, True, False]


def test_a_module_that_is_sharded_already_is_refused():
    with single_rank():
        module = fully_shard(nn.Linear(3, 2))
        with pytest.raises(ModelError) as raised:
            start(module)
    assert str(raised.value) == (
        "FSDPLinear: is already sharded (weight is a DTensor). Give the module as it was before."
    )


@contextmanager
def single_rank():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_module_whose_attribute_refuses_copies_trains_without_a_flop_count():
    class Uncopied(nn.Linear):
        def __deepcopy__(self, memo):
            raise ValueError("one of me")

    report = start(Uncopied(3, 2)).step(BATCH).read()
    assert report.flops_per_second is None
    with pytest.raises(ModelError) as raised:
        copy_module(Uncopied(3, 2))
    assert str(raised.value) == (
        "Uncopied: cannot be copied (ValueError: one of me). "
        "Let copy.deepcopy(module) work, or use a plan without pipeline."
    )


@pytest.mark.parametrize(
    ("dtype", "plan", "said"),
    [
        (torch.float64, "fp32", ["float64 and are kept in float32: no plan keeps more"]),
        (torch.float64, "bf16-pure", ["float64 and are kept in bfloat16: no plan keeps more"]),
        (
            torch.bfloat16,
            "fp32",
            ["bfloat16 and are kept in float32, as 'fp32' keeps them; bf"],
        ),
        (
            torch.float16,
            "bf16",
            ["float16 and are kept in float32, as 'bf16' keeps them; bf"],
        ),
        (torch.bfloat16, "bf16-pure", []),
        (torch.float32, "bf16-pure", []),
    ],
)
def test_another_type_than_the_module_came_in_is_an_event(dtype, plan, said):
    module = torch.nn.Linear(4, 2).to(dtype)
    run = climb(module, loss="squared_error", plan=plan, device="cpu")
    given = [event for event in run.events if event.startswith("parameters came in")]
    assert [text in event for text, event in zip(said, given, strict=True)] == [True] * len(said)
