"""A learning-rate schedule that is given as code: a function of the step, or a torch scheduler."""

from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

from stepladder.errors import PlanError
from stepladder.train import climb
from tests.ranks import run
from tests.train.toys import learn_scheduled, net, pairs, same_bits

STEPS = 6


def fading(step):
    return 1 / (1 + step)


SCHEDULERS = {
    "exponential": partial(lr_scheduler.ExponentialLR, gamma=0.7),
    "cosine with restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=4),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=2 * STEPS + 1),
    "in sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.5)], [3]
    ),
}
PARTIALS = [name for name, made in SCHEDULERS.items() if isinstance(made, partial)]


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def plain(schedule, steps):
    module = net(1)
    optimizer = sgd(module)
    scheduler = SCHEDULERS[schedule](optimizer)
    return module, learn_scheduled(module, optimizer, scheduler, pairs(steps))


def start(rate, plan="fp32", module=None, optimizer=None):
    module = net(1) if module is None else module
    return climb(
        module, loss="cross_entropy", optimizer=optimizer or sgd(module), plan=plan, rate=rate,
        device="cpu",
    )  # fmt: skip


def start_scheduled(schedule, plan="fp32"):
    """By its class where that can be said, else as an instance."""
    if schedule in PARTIALS:
        return start(SCHEDULERS[schedule], plan)
    module = net(1)
    optimizer = sgd(module)
    return start(SCHEDULERS[schedule](optimizer), plan, module, optimizer)


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_a_scheduler_takes_a_step_after_each_of_the_runs_and_is_resumed(schedule, tmp_path):
    module, rates = plain(schedule, 2 * STEPS)
    halves = start_scheduled(schedule)
    reported = [halves.step(batch).lr for batch in pairs(2 * STEPS)[:STEPS]]
    halves.save(tmp_path)
    again = start_scheduled(schedule)
    again.step(pairs(1)[0])  # and then it is put elsewhere
    again.load(tmp_path)
    reported += [again.step(batch).lr for batch in pairs(2 * STEPS)[STEPS:]]
    assert reported == rates
    assert same_bits(again.module, module)


def rates_on_ranks(folder):
    taken = start(SCHEDULERS["one cycle"], "fp32 zero3")
    rates = [taken.step(batch, rows="global").lr for batch in pairs(STEPS)]
    taken.save(folder)
    again = start(SCHEDULERS["one cycle"], "fp32 ddp")
    again.resume(folder)
    return rates + [again.step(batch, rows="global").lr for batch in pairs(2 * STEPS)[STEPS:]]


def test_ranks_have_the_same_rates(tmp_path):
    _, rates = plain("one cycle", 2 * STEPS)
    assert run(rates_on_ranks, 2, tmp_path, init=False) == [rates, rates]


def test_a_function_of_the_step_is_a_share_of_the_rate(tmp_path):
    taken = start(fading, optimizer="sgd lr=0.5 group=*.bias:lr=x0.1")
    assert [taken.step(batch).lr for batch in pairs(3)] == [0.5, 0.25, 0.5 / 3]
    assert [group["lr"] for group in taken.optimizer.param_groups] == [
        pytest.approx(0.5 / 3), pytest.approx(0.05 / 3)
    ]  # fmt: skip
    taken.save(tmp_path)
    again = start("constant", optimizer="sgd lr=0.5 group=*.bias:lr=x0.1")
    again.load(tmp_path)
    said = "the rate was 'python:fading' when step-000003 was saved and is 'constant' now"
    assert said in again.events


@pytest.mark.parametrize(
    ("rate", "said"),
    [
        (7, "rate: int is no schedule"),
        (lambda step: -1, "rate: function returned -1.0"),
        (lambda step: 1 / step, "rate: function raised ZeroDivisionError for step 0: division"),
        (lambda: 1, r"but 1 was given\. It is given the step and returns a share of the rate: la"),
        (lambda o: [o], r"rate: function raised TypeError for step 0: float\(\) argument must be"),
        (lambda step: 1 / (step - 3), "rate: function returned -0.3333"),
        (partial(lr_scheduler.LambdaLR, lr_lambda=lambda _: float("nan")), "rate: nan was set for"),
        (partial(lr_scheduler.StepLR), r"rate: StepLR\(optimizer\) raised TypeError: .*step_size"),
        (lr_scheduler.ReduceLROnPlateau, "rate: ReduceLROnPlateau needs a measure at each step"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), "rate: ReduceLROnPlateau needs a measure at"),
        (lr_scheduler.ExponentialLR(sgd(net()), 0.5), "rate: ExponentialLR is a scheduler of ano"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_in_one_line(rate, said):
    with pytest.raises(PlanError, match=said):
        start(rate).step(pairs(1)[0])


def test_a_function_may_raise_later():
    taken = start(lambda step: 1 / (step - 1) ** 2)
    taken.step(pairs(1)[0])
    with pytest.raises(PlanError, match="rate: function raised ZeroDivisionError: division by"):
        taken.step(pairs(1)[0])


def test_a_function_may_make_the_scheduler():
    module, rates = plain("in sequence", STEPS)
    taken = start(SCHEDULERS["in sequence"])
    assert [taken.step(batch).lr for batch in pairs(STEPS)] == rates
    assert same_bits(taken.module, module)


def test_a_scheduler_that_has_ended_is_told_before_the_next_step():
    taken = start(partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=2))
    reports = [taken.step(batch) for batch in pairs(3)[:2]]
    assert reports[1].loss > 0
    taken.step(pairs(1)[0])
    for _ in range(2):
        with pytest.raises(PlanError, match="rate: OneCycleLR.step raised ValueError: Tried to st"):
            taken.step(pairs(1)[0])
    assert taken.index == 3


def test_another_schedule_than_the_saved_one_is_told(tmp_path):
    taken = start(partial(lr_scheduler.ExponentialLR, gamma=0.7))
    taken.step(pairs(1)[0])
    taken.save(tmp_path)
    again = start(partial(lr_scheduler.ExponentialLR, gamma=0.5))
    again.load(tmp_path)
    said = "the rate was 'python:ExponentialLR gamma=0.7' when step-000001 was saved and is 'python"
    assert any(event.startswith(said) for event in again.events)


def test_one_clip_is_enough():
    with pytest.raises(PlanError, match="clip: 1.0 is given beside an optimizer with clip=0.1"):
        climb(net(), loss="cross_entropy", optimizer="sgd lr=1 clip=0.1", clip=1.0, plan="fp32")


def test_the_rate_of_a_run_can_be_read_and_set():
    taken = start("constant", optimizer="sgd lr=0.5 group=*.bias:lr=x0.1")
    assert taken.lr == 0.5
    taken.lr = 0.25
    assert taken.step(pairs(1)[0]).lr == taken.lr == 0.25
    assert [group["lr"] for group in taken.optimizer.param_groups] == [0.25, 0.025]
    for wrong in (-1, True, float("nan")):
        with pytest.raises(PlanError, match=f"run.lr: {wrong} is not a number of 0 or more"):
            taken.lr = wrong
    module = net(1)
    frozen = torch.optim.SGD([
        {"params": module.first.parameters(), "lr": 0.0}, {"params": module.last.parameters()}
    ], lr=0.5)  # fmt: skip
    other = start(None, module=module, optimizer=frozen)
    other.lr = 0.25
    assert other.lr == 0.25
    for rate, said in (("cosine steps=9", "'cosine steps=9'"), (fading, "'python:fading'")):
        with pytest.raises(PlanError, match=f"run.lr: {said} sets the learning rate of every"):
            start(rate).lr = 1.0
    with pytest.raises(PlanError, match="'python:ExponentialLR gamma=0.7' sets the learning rate"):
        start_scheduled("exponential").lr = 1.0
