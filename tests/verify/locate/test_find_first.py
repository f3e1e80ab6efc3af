"""Planted faults are located to the right module, and runs without any give no alarm.

A short form of benchmarks/located_faults.py, which plants all of them.
"""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from stepladder.verify.course import make_course
from stepladder.verify.live_module import live_subject
from stepladder.verify.locate.difference import Difference, Location
from stepladder.verify.locate.find_first import locate_course, rounding_of
from stepladder.verify.subjects import find_subject
from tests.ranks import POOL
from tests.soak import soak_after

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "parity"))

from planted_faults import FAULTS, LLAMA, subject_of, watch_planted

FIRST = (
    "dropped reduction of one matrix",
    "bias added on every rank",
)


@pytest.mark.parametrize(
    "name", soak_after([*FIRST, *(n for n in FAULTS if n not in FIRST)], gate=len(FIRST))
)
def test_a_planted_fault_is_located(name):
    fault = FAULTS[name]
    course = make_course(subject_of(fault), f"{fault.plan}", fault.optimizer, steps=1)
    found = locate_course(POOL, course, partial(watch_planted, name)).difference
    assert found is not None
    assert (found.kind, found.module) == (fault.kind, fault.module), str(found)
    assert fault.rank is None or found.rank == fault.rank
    assert found.distance > found.allowed and found.inputs != "different"


class Patchwork(nn.Module):
    """What modules do: a shared block, one that some batches skip, statistics, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, 6, 3, padding=1)
        self.norm, self.shared = nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.recurrent, self.unused = nn.LSTM(6, 6), nn.Linear(6, 6)
        self.head, self.act = nn.Linear(6, 3), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.act(self.norm(self.stem(x)))
        hidden, (last, _) = self.recurrent(hidden.permute(2, 0, 1))  # tokens come first
        hidden = self.shared(torch.tanh(self.shared(hidden[-1]))) + last[0]
        if x.mean() > 100:
            hidden = self.unused(hidden)
        return {"logits": self.head(hidden), "hidden": hidden, "unread": self.stem.weight.sum()}


def patchwork(rows=8):
    draw = torch.Generator().manual_seed(3)
    batch = torch.randn(rows, 2, 5, generator=draw), torch.randint(0, 3, (rows,), generator=draw)
    return live_subject(Patchwork, batch, "cross_entropy")


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ("fp32 ddp batch=8 micro=4", "sgd lr=0.1 momentum=0.9"),
        ("bf16 zero3 batch=8 micro=4", "adamw lr=1e-3 clip=0.1"),
    ],
)
def test_there_is_no_alarm_for_a_module_of_many_kinds(plan, optimizer):
    found = locate_course(POOL, make_course(patchwork(), plan, optimizer, steps=2))
    assert (found.problem, found.difference) == ("", None)
    assert found.compared > 150 and 0 < found.same_bits < found.compared


def test_statistics_of_a_micro_batch_are_located_with_what_the_run_said():
    course = make_course(patchwork(), "fp32 batch=8 micro=4", "sgd lr=0.1", steps=1)
    found = locate_course(POOL, course).difference
    assert (found.kind, found.module, found.micro_batch) == ("output", "norm", 0)
    assert found.inputs == "the same bits" and "BatchNorm sees one micro-batch" in found.said[0]
    assert "The run said: " in str(found)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient / 2


class Passing(nn.Module):
    """Returns what its child made; in a micro-batch its own code halves the gradient of that."""

    def __init__(self, depth=0):
        super().__init__()
        self.child = Passing(depth - 1) if depth else nn.Linear(4, 4)
        self.is_faulty = not depth

    def forward(self, x):
        hidden = self.child(x)
        return Halved.apply(hidden) if self.is_faulty and len(x) < 8 else hidden


class Residual(Passing):
    """The same where the output of a child goes on beside another."""

    def forward(self, x):
        hidden = x + self.child(x)
        return torch.tanh(Halved.apply(hidden) if len(x) < 8 else hidden)


@pytest.mark.parametrize(
    ("middle", "module"),
    [(Passing(), "1"), (Passing(1), "1.child"), (Residual(), "1")],
    ids=["its child", "its own child", "a sum"],
)
def test_a_wrong_gradient_is_of_the_module_whose_code_made_it(middle, module):
    net = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    batch = torch.randn(8, 3), torch.arange(8) % 2
    subject = live_subject(net, batch, "cross_entropy")
    course = make_course(subject, "fp32 micro=4", "sgd lr=0.1", steps=1)
    found = locate_course(POOL, course).difference
    assert found is not None and (found.kind, found.module) == ("output gradient", module)


class Noisy(nn.Linear):
    """Draws numbers that no option turns off."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (torch.rand(x.shape[0], 1) > 0.5)


def test_a_module_that_draws_numbers_gives_no_alarm_and_is_said_to():
    batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    subject = live_subject(partial(Noisy, 4, 2), batch, "cross_entropy")
    course = make_course(subject, "fp32 ddp batch=8 micro=4", "sgd lr=0.1", steps=1)
    found = locate_course(POOL, course)
    assert found.difference is None and "draws random numbers" in found.left_out["random numbers"]


def test_what_cannot_be_located_is_refused_in_a_line():
    refused = locate_course(POOL, make_course(find_subject(LLAMA), "fp8", "sgd lr=0.1", steps=1))
    assert "no plain torch loop whose layers could be compared" in refused.problem
    assert str(refused).startswith("'fp8': precision: fp8 has no plain torch loop")


def test_a_rounding_is_one_of_the_precision_in_use():
    units = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10, "tf32": 2.0**-10}
    for word, unit in units.items():
        plan = make_course(patchwork(), word, "sgd lr=0.1").plan
        assert rounding_of(plan) == unit


def test_a_location_reads_well_at_80_columns():
    found = Difference(
        "fp32 zero3 shard=2", 3, "gradient", "blocks.0", "gradient of blocks.0.weight", None, 1,
        0.5, 1e-6, "the same bits", 0.5, 2, 9,
    )  # fmt: skip
    text = str(Location("fp32 zero3 shard=2", "sgd", found, 90, 40, dict.fromkeys("abcd", "why")))
    assert max(map(len, text.splitlines())) <= 80
    assert " ".join(text.split()) == (
        "'fp32 zero3 shard=2', step 3, rank 1: gradient of blocks.0.weight is the first to differ: "
        "off by 5.0e-01 of its norm, and rounding explains 1.0e-06; it is 0.5 times what it should "
        "be. Computed by blocks.0; what it is computed from is the same bits. 2 of 9 tensors of "
        "this kind differ in this step. Not compared: a, b, c and 1 more."
    )
