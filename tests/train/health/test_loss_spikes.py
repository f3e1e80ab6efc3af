"""A jump is told from noise, and noise from a jump."""

import random

from stepladder.train.health.loss_spikes import ENOUGH, SpikeWatch


def watched(losses):
    watch = SpikeWatch()
    return [watch.see(loss) for loss in losses]


def test_a_noisy_falling_loss_is_never_a_spike():
    draw = random.Random(0)
    for scale in (1e-4, 0.05, 0.3):
        losses = [3 / (1 + step / 200) + draw.gauss(0, scale) for step in range(5000)]
        assert not any(watched(losses)), scale


def test_a_jump_is_one_and_says_from_where():
    draw = random.Random(1)
    usual = [2 + draw.gauss(0, 0.01) for _ in range(100)]
    assert watched([*usual, 4.0])[-1] == "loss 4, and the last 64 were about 1.999"


def test_what_is_not_a_number_is_a_spike():
    assert "nan" in watched([2.0] * ENOUGH + [float("nan")])[-1]
    assert "inf" in watched([2.0] * ENOUGH + [float("inf")])[-1]


def test_the_first_losses_are_never_unusual():
    assert not any(watched([2.0] * (ENOUGH - 1) + [50.0]))


def test_a_spike_does_not_become_usual():
    watch = SpikeWatch()
    for _ in range(ENOUGH):
        watch.see(2.0)
    assert all(watch.see(9.0) for _ in range(200))
    watch.forget()
    assert watch.see(9.0) is None
