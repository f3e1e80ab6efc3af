"""The lesson's scale is torch's, step for step, and its claim holds."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest
import torch

from stepladder.labs.loss_scaling import DynamicScale, batch, run, small_network, tiny_loss

INITIAL, PATIENCE, BROKEN_AT = 2.0**46, 6, 12


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def torchs_way(make_optimizer: Callable) -> tuple[list[float], list[bool], list[torch.Tensor]]:
    """The same training with GradScaler: scales, skips, and the weights after each step."""
    model, _ = small_network()
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL, growth_interval=PATIENCE)
    scales, skips, weights = [], [], []
    for step in range(60):
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        scaler.scale(tiny_loss(model, batch(step, broken=step == BROKEN_AT))).backward()
        scaler.step(optimizer)
        scaler.update()
        skips.append(scaler.get_scale() < scales[-1])
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return scales, skips, weights


@pytest.mark.parametrize(
    "make_optimizer",
    [lambda p: torch.optim.SGD(p, lr=1e6), lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-15)],
    ids=["sgd", "adam"],
)
def test_scales_skips_and_every_bit_of_the_weights_are_torchs(make_optimizer: Callable) -> None:
    scales, skips, weights = torchs_way(make_optimizer)
    model, _ = small_network()
    optimizer = make_optimizer(model.parameters())
    scale = DynamicScale(INITIAL, PATIENCE)
    for step in range(60):
        optimizer.zero_grad()
        assert scale.scale == scales[step], step
        scale.scaled(tiny_loss(model, batch(step, broken=step == BROKEN_AT))).backward()
        assert scale.step(optimizer) is not skips[step], step
        ours = torch.cat([p.detach().flatten() for p in model.parameters()])
        assert torch.equal(ours, weights[step]), step
    assert skips[BROKEN_AT] and skips[0], "a broken batch and a scale begun too high both skip"
    assert max(scales[20:]) > min(scales[20:]), "it grew again"


def test_without_a_scale_the_first_layer_gets_nothing_and_with_one_it_gets_all() -> None:
    plain = [step for step in run(DynamicScale(initial=1.0)) if not step.skipped]
    scaled = [step for step in run(DynamicScale(INITIAL, PATIENCE)) if not step.skipped]
    assert {step.zero_share for step in plain} == {1.0}
    assert max(step.zero_share for step in scaled) < 0.01
    assert mean(s.loss for s in scaled[-10:]) < 0.5 * mean(s.loss for s in plain[-10:])


def test_only_steps_that_overflow_are_skipped() -> None:
    steps = run(DynamicScale(2.0**30), num_steps=20, broken_at=5)
    assert [index for index, step in enumerate(steps) if step.skipped] == [5]
    assert [step.scale for step in steps] == [2.0**30] * 6 + [2.0**29] * 14
