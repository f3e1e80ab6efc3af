"""Recorded steps behind the compiler's guards, on the device that records them."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import stepladder as sl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Net(nn.Module):
    """Many small kernels, statistics, random numbers, and an attribute that forward reads."""

    def __init__(self, depth=3):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(64, 10)
        self.lift, self.factor = nn.Linear(32, 64), 1.0

    def forward(self, x):
        x = self.lift(functional.relu(self.norm(self.first(x))).mean((2, 3)))
        for layer in self.layers:
            x = x + functional.gelu(layer(functional.layer_norm(x, (64,))))
        return self.last(self.drop(x)) * self.factor


def batch(step, rows=16):
    draw = torch.Generator().manual_seed(step)
    pixels = torch.randn(rows, 3, 8, 8, generator=draw).pin_memory()
    return pixels, torch.randint(0, 10, (rows,), generator=draw).pin_memory()


def train(plan, *, change=None, rows=lambda step: 16, optimizer="adamw lr=1e-3 clip=1", steps=9):
    module = Net()
    run = sl.climb(module, loss="cross_entropy", optimizer=optimizer, plan=plan, device="cuda",
                   rate="cosine warmup=2 steps=20")  # fmt: skip
    losses = []
    for step in range(steps):
        if change:
            change(step, module)
        losses.append(run.step(batch(step, rows(step))).loss)
    return losses, {k: v.clone() for k, v in module.state_dict().items()}, run


def compare(words, **given):
    plain, state, _ = train(f"{words} compile=whole", **given)
    recorded, other, run = train(f"{words} compile=whole graphs=on", **given)
    steps = run.climbed.forward_backward
    assert recorded == pytest.approx(plain, rel=1e-3), (recorded, plain, steps.off)
    for name, value in state.items():
        assert torch.allclose(value.float(), other[name].float(), rtol=2e-2, atol=1e-3), name
    return steps


@pytest.mark.parametrize("words", ["bf16", "fp16", "bf16-master"])
def test_replayed_steps_are_those_of_the_compiled_run(words):
    steps = compare(words)
    assert steps.replayed == 7 and not steps.off


def test_changes_are_seen_at_once():
    def change(step, module):
        module.factor = 1.0 if step < 4 else 3.0
        module.drop.p = 0.2 if step < 8 else 0.0

    steps = compare("fp32", change=change, optimizer="sgd lr=0.05", steps=14)
    assert steps.recordings >= 2 and not steps.off


def test_each_shape_has_a_recording():
    steps = compare("bf16", rows=lambda step: 16 if step % 2 else 8, steps=12)
    assert steps.recordings >= 2 and not steps.off


def test_a_step_that_is_out_of_memory_goes_on_in_smaller_ones():
    run = sl.climb(Net(), loss="cross_entropy", plan="fp32 compile=whole graphs=on", device="cuda")
    for step in range(4):
        run.step(batch(step)).read()
    parts = run.climbed.forward_backward
    assert parts.replayed == 2
    wanted, given = parts.loss.with_module, []

    def short(*args):
        if not given:
            given.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return wanted(*args)

    parts.loss = replace(parts.loss, with_module=short)
    parts.shapes.clear()
    assert run.step(batch(9)).loss > 0 and parts.micro == 8


def test_auto_records_a_module_whose_kernels_are_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = sl.climb(Net(12), loss="cross_entropy", optimizer="adamw lr=1e-3 clip=1",
                   plan="auto tune=120", sample=batch(0), device="cuda")  # fmt: skip
    assert run.plan.graphs, run.events
    losses = [run.step(batch(step)).loss for step in range(6)]
    assert run.climbed.forward_backward.replayed == 4 and losses[-1] > 0
