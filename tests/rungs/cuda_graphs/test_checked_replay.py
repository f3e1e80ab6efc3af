"""Recorded steps of modules whose Python may do anything, with recordings that any device makes.

A recording made here runs the compiled graph again from the tensors that it was recorded with, as a
CUDA graph does: it sees nothing of what changed in Python since.
"""

import random
import sys

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.kernels import GraphCall
from stepladder.kernels.graph.compile import with_own_code
from stepladder.plan.settled.limits import DeviceLimits
from stepladder.rungs.cuda_graphs import checked_replay


class Again:
    """A recording without a GPU."""

    pool = None

    def __init__(self, run, parameters, device, pool):
        self.run = run

    def launch(self):
        return self.run()


def in_pieces(function, options):
    return torch.compile(with_own_code(function), backend="eager")


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    limits = DeviceLimits("cpu", "cuda", frozenset({"fp32", "fp16", "bf16"}))
    monkeypatch.setattr("stepladder.train.build_run.device_limits", lambda device: limits)
    where = "stepladder.kernels.graph.replayable_call"
    monkeypatch.setattr(f"{where}.compile_graph", lambda traced, examples, options: traced)
    monkeypatch.setattr(f"{where}.compile_in_pieces", in_pieces)
    # What calls the module alone, such as an evaluation, runs uncompiled: inductor takes long.
    choose = sys.modules["stepladder.kernels.choose"]
    monkeypatch.setattr(choose, "compile_parts", lambda parts, options: None)
    monkeypatch.setattr(checked_replay, "Recording", Again)


class Net(nn.Module):
    """With statistics, random numbers and attributes that its forward reads."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(8, 3)
        self.factor = 1.0

    def forward(self, x):
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.last(hidden) * self.factor


def batch(step, rows=8):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(rows, 6, generator=draw), torch.randint(0, 3, (rows,), generator=draw)


def train(words, module, *, change=None, loss="cross_entropy", steps=8, rows=lambda step: 8,
          optimizer="sgd lr=0.1", **options):  # fmt: skip
    run = sl.climb(module, loss=loss, optimizer=optimizer, plan=words, device="cpu", **options)
    losses = []
    for step in range(steps):
        if change:
            change(step, run)
        losses.append(run.step(batch(step, rows(step))).loss)
    return losses, {k: v.clone() for k, v in module.state_dict().items()}, run


def same(make=Net, *, words="fp32", **given):
    """A recorded run, after a look that it computed what a plain one does."""
    plain, state, _ = train(words, make(), **given)
    recorded, other, run = train(f"{words} compile=whole graphs=on", make(), **given)
    assert recorded == plain
    assert all(torch.equal(state[name], other[name]) for name in state)
    return run.climbed.forward_backward


@pytest.mark.parametrize("optimizer", ["sgd lr=0.1", "adamw lr=0.01 clip=0.1"])
@pytest.mark.parametrize("words", ["fp32", "fp16"])
def test_replayed_steps_are_those_of_a_plain_run(optimizer, words):
    steps = same(words=words, optimizer=optimizer, rate="cosine warmup=2 steps=8")
    assert steps.replayed == 6 and steps.recordings == 1 and not steps.off


def test_a_changed_attribute_is_seen_at_once():
    def change(step, run):
        run.module.factor = 3.0 if step >= 4 else 1.0

    steps = same(change=change)
    assert steps.recordings == 2 and steps.replayed == 4


@pytest.mark.parametrize("freeze", [False, True])
def test_modes_and_frozen_parameters_are_seen_at_once(freeze):
    def change(step, run):
        if step == 4 and freeze:
            run.module.first.requires_grad_(False)
        elif step >= 4:
            run.module.drop.p = 0.0

    assert same(change=change).recordings == 2


def test_a_parameter_whose_memory_was_exchanged_is_read_where_it_lies_now():
    def change(step, run):
        if step == 4:
            run.module.last.weight.data = run.module.last.weight.data.clone() * 2

    assert same(change=change).recordings == 2


def test_a_hook_on_a_parameter_is_called_at_every_later_step():
    called = []

    def change(step, run):
        if step == 4:
            run.module.last.weight.register_hook(lambda gradient: called.append(1) or 2 * gradient)

    assert same(change=change).replayed == 2
    assert len(called) == 8, "four steps of two runs"


def test_evaluation_in_between_changes_nothing():
    def change(step, run):
        if step == 4:
            run.module.eval()
            run.evaluate([batch(0)])

    assert same(change=change).replayed == 6


class Counting(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1.0 if self.calls < 6 else 2.0)


@pytest.mark.soak
def test_a_module_that_counts_its_calls_runs_plainly_and_says_why():
    made = []
    steps = same(lambda: made.append(Counting()) or made[-1], steps=10)
    assert [one.calls for one in made] == [10, 10] and steps.replayed == 0
    assert steps.off and steps.notes[-1] == f"graphs: steps are not recorded: {steps.off}"


class Drawing(Net):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


@pytest.mark.soak
def test_numbers_that_python_draws_are_drawn_anew():
    def seeded(step, run):
        random.seed(step)

    assert same(Drawing, change=seeded).replayed == 0


class Keeping(Net):
    kept = None

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


def test_a_module_that_keeps_a_result_runs_plainly_and_says_why():
    steps = same(Keeping)
    assert steps.off == "its forward keeps 1 results beside the loss"


class Branching(Net):
    def forward(self, x):
        made = super().forward(x)
        return made * 2 if made.sum().item() > 0 else made


def test_a_module_that_asks_for_numbers_runs_plainly_and_says_why():
    assert "data-dependent" in same(Branching, steps=4).off


@pytest.mark.soak
def test_each_shape_has_a_recording_and_their_number_is_bounded():
    steps = same(rows=lambda step: 4 + step % 2, steps=12)
    assert steps.recordings >= 2 and steps.replayed >= 5
    steps = same(rows=lambda step: 4 + step, steps=6)
    assert len(steps.shapes) == checked_replay.MAX_SHAPES


class Annealed:
    """A loss with a weight that the loop changes."""

    weight = 1.0

    def __call__(self, outputs, targets):
        return self.weight * nn.functional.cross_entropy(outputs, targets)


def test_a_loss_is_asked_too():
    losses = [Annealed(), Annealed()]

    def change(step, run):
        for loss in losses:
            loss.weight = 2.0 if step >= 4 else 1.0

    plain, *_ = train("fp32", Net(), loss=losses[0], change=change)
    recorded, _, run = train("fp32 compile=whole graphs=on", Net(), loss=losses[1], change=change)
    assert recorded == plain and run.climbed.forward_backward.recordings == 2


def test_several_micro_batches_run_plainly():
    assert same(words="fp32 micro=4").replayed == 0


def test_what_changes_at_every_step_is_not_recorded():
    def change(step, run):
        run.module.last.weight.data = run.module.last.weight.data.clone()

    steps = same(change=change)
    assert steps.replayed == 0 and steps.off == "what its forward reads changes all the time"


def test_what_lies_on_another_device_is_not_recorded():
    call = GraphCall.of(lambda one: [one], (torch.zeros(()),), [torch.zeros(())])
    assert call.why_not(torch.device("cuda")) == "it reads a tensor on cpu"
    assert not call.why_not(torch.device("cpu"))
