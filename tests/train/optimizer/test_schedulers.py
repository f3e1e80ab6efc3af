"""A torch scheduler on `run.optimizer` sets the learning rate of the next step, and is resumed."""

from fractions import Fraction

import numpy
import pytest
import torch
from torch.optim import lr_scheduler

from stepladder.errors import ModelError, PlanError, RecordError
from stepladder.train import climb
from tests.ranks import run
from tests.train.toys import distance, learn_scheduled, net, pairs

STEPS = 6
SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.5),
    "steps": lambda o: lr_scheduler.StepLR(o, 2, 0.1),
    "warm-up": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 4),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.8, total_steps=STEPS + 1),
}
TORCH = {
    "sgd lr=0.5 momentum=0.9": lambda p: torch.optim.SGD(p, 0.5, momentum=0.9),
    "adamw lr=0.05 wd=0.1": lambda p: torch.optim.AdamW(
        p, 0.05, (0.9, 0.95), 1e-8, weight_decay=0.1
    ),
}


def plain(schedule, optimizer):
    module = net(1)
    by = TORCH[optimizer](module.parameters())
    return module, learn_scheduled(module, by, SCHEDULERS[schedule](by), pairs(STEPS))


def learn(optimizer, plan="fp32", **how):
    return climb(net(1), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu", **how)


@pytest.mark.parametrize("optimizer", TORCH)
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_a_scheduler_trains_as_in_a_plain_loop(schedule, optimizer):
    module, rates = plain(schedule, optimizer)
    taken = learn(optimizer)
    scheduler = SCHEDULERS[schedule](taken.optimizer)
    reported = []
    for batch in pairs(STEPS):
        reported.append(taken.step(batch).lr)
        scheduler.step()
    assert reported == pytest.approx(rates)
    assert distance(taken.module, module) < 1e-5


def test_a_rate_set_by_hand_stays_until_it_is_set_again():
    taken = learn("sgd lr=0.5")
    rates = []
    for index, batch in enumerate(pairs(4)):
        if index == 1:
            for group in taken.optimizer.param_groups:
                group["lr"] = 0.25
        rates.append(taken.step(batch).lr)
    assert rates == [0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize("given", [numpy.float32(0.25), torch.tensor(0.25), Fraction(1, 4)])
def test_the_rate_may_be_any_number(given):
    taken = learn("sgd lr=0.5")
    taken.lr = given
    assert taken.lr == 0.25 and type(taken.lr) is float
    assert taken.step(pairs(1)[0]).lr == 0.25


def resumed(folder, plan):
    straight, halves = learn("sgd lr=0.5", plan), learn("sgd lr=0.5", plan)
    schedule = SCHEDULERS["exponential"]
    for taken in (straight, halves):
        scheduler = schedule(taken.optimizer)
        for batch in pairs(6 if taken is straight else 3):
            taken.step(batch, rows="global")
            scheduler.step()
    halves.save(folder)
    again = learn("sgd lr=0.5", plan)
    again.resume(folder)
    scheduler = lr_scheduler.ExponentialLR(again.optimizer, 0.5, last_epoch=again.index - 1)
    rates = []
    for batch in pairs(6)[3:]:
        rates.append(again.step(batch, rows="global").lr)
        scheduler.step()
    return rates, distance(again.module, straight.module) if plan == "fp32" else 0.0


def test_a_resumed_run_goes_on_with_the_rate_that_was_set(tmp_path):
    rates, apart = resumed(tmp_path, "fp32")
    assert rates == [0.0625, 0.03125, 0.015625] and apart == 0
    for rates, _ in run(resumed, 2, tmp_path / "ranks", "fp32 zero3", init=False):
        assert rates == [0.0625, 0.03125, 0.015625]


def test_a_backoff_halves_the_schedulers_rate_and_leaves_it_to_the_scheduler():
    taken = learn("sgd lr=0.5", nonfinite="backoff")
    scheduler = SCHEDULERS["exponential"](taken.optimizer)
    bad = (torch.full((8, 16), float("nan")), torch.zeros(8, dtype=torch.long))
    rates = []
    for batch in (pairs(1)[0], bad, *pairs(2)):
        rates.append(taken.step(batch).lr)
        scheduler.step()
    assert rates == [0.5, 0.25, 0.0625, 0.03125]


def test_two_schedules_and_added_parameters_are_refused_before_a_step():
    taken = learn("sgd lr=0.5", rate="cosine steps=10")
    lr_scheduler.StepLR(taken.optimizer, 2)
    with pytest.raises(PlanError, match="rate: 'cosine steps=10' and a scheduler on run.optimizer"):
        taken.step(pairs(1)[0])
    taken = learn("sgd lr=0.5")
    taken.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with pytest.raises(ModelError, match="optimizer: a group of parameters was added"):
        taken.step(pairs(1)[0])
    assert taken.index == 0


def test_rates_saved_for_other_groups_are_refused(tmp_path):
    taken = learn("sgd lr=0.5")
    taken.optimizer.param_groups[0]["lr"] = 0.25
    taken.step(pairs(1)[0])
    taken.save(tmp_path)
    other = learn("sgd lr=0.5 wd=0.1")
    with pytest.raises(RecordError, match="its learning rates were set by hand for lr=1.0x wd=0"):
        other.load(tmp_path)
