import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from stepladder.plan import Plan
from stepladder.train.tuning import contest as contest_module
from stepladder.train.tuning.contest import Contest, beats
from stepladder.train.tuning.trial import Trial, take_turns

CPU = torch.device("cpu")


@dataclass
class Clocked:
    """A run whose turns take these seconds a step, over and over."""

    seconds: list[float]
    steps: int = 10

    def __post_init__(self):
        self.turns = 0
        self.clock = itertools.cycle(self.seconds)

    def take_turn(self):
        self.turns += 1
        return next(self.clock)


def trial(milliseconds, gib=1.0, ratio=math.nan, text="bf16 compile=whole"):
    bytes_ = int(gib * 2**30)
    return Trial(Plan.parse(text), milliseconds / 1e3, 1.0, bytes_, loss=2.0, norm=1.0, ratio=ratio)


def test_a_plan_alone_has_no_ratio():
    seconds, ratio = take_turns(Clocked([0.01, 0.02, 0.03]), None)
    assert seconds == 0.02 and math.isnan(ratio)


def test_what_slows_the_machine_for_a_while_slows_both():
    """A machine that becomes slower from turn to turn: the ratio stays what it is."""
    drift = [0.01 * 1.3**turn for turn in range(5)]
    mine, rival = Clocked([0.8 * each for each in drift]), Clocked(drift)
    assert take_turns(mine, rival)[1] == pytest.approx(0.8)
    assert mine.turns == rival.turns == 5


@pytest.mark.parametrize(("share", "turns"), [(0.98, 15), (1.02, 15), (0.96, 5), (1.04, 5)])
def test_two_plans_that_are_close_take_more_turns(share, turns):
    mine = Clocked([share * 0.01])
    take_turns(mine, Clocked([0.01]))
    assert mine.turns == turns


def test_long_steps_take_fewer_turns():
    mine = Clocked([1.0], steps=1)
    take_turns(mine, Clocked([1.0], steps=1))
    assert mine.turns == 3 + 2  # two seconds a pair, and three for all of them


def test_noise_in_a_few_turns_does_not_choose():
    """Of the first turns most are unlucky, of all of them few."""
    unlucky = Clocked([0.01028] * 3 + [0.01] * 12)
    assert take_turns(unlucky, Clocked([0.0101]))[1] < 1


@pytest.mark.parametrize(
    ("other", "wins"),
    [
        (trial(99, ratio=0.99), True),
        (trial(90, ratio=1.01), False),  # in turns it was slower, whatever the medians say
        (trial(99.7, ratio=0.997), False),  # as fast: the plainer one stays
        (trial(99.7, 0.9, ratio=0.997), True),  # as fast, and smaller
        (trial(100.3, 0.9, ratio=1.003), True),
        (trial(99.7, 1.1, ratio=0.997), False),
        (trial(90, 3.0, ratio=0.9), True),
        (trial(99), False),  # without turns one in a hundred is noise
        (trial(97), True),
        (trial(101, 0.9), True),
    ],
)
def test_a_plan_wins_if_it_is_faster_or_as_fast_and_smaller(other, wins):
    assert beats(other, trial(100)) == wins


def contest(monkeypatch, found, free=math.inf, module=None):
    """A contest whose trials end as they are listed; what each was given as its rival."""
    rivals = []

    def try_plan(plan, module, loss, batch, make_run, device, rival=None):
        rivals.append(rival)
        return found.pop(0)

    monkeypatch.setattr(contest_module, "try_plan", try_plan)
    monkeypatch.setattr(contest_module, "free_bytes", lambda device: free)
    made = Contest(
        module or nn.Linear(2, 2), None, None, None, CPU, 60, lambda line: None,
        lambda what, plan: None,
    )  # fmt: skip
    return made, rivals


def test_every_plan_takes_turns_with_the_best_before_it(monkeypatch):
    slow, fast, slower = (trial(100), "a"), (trial(50, ratio=0.5), "b"), (trial(70, ratio=1.4), "c")
    made, rivals = contest(monkeypatch, [slow, fast, slower, slow])
    for _ in range(4):
        made.enter("", Plan())
    assert rivals == [None, "a", "b", "b"] and made.best is fast[0]


@pytest.mark.parametrize(("free", "kept"), [(1.4, False), (1.6, True)])
def test_the_best_run_is_let_go_where_the_next_may_find_no_room(free, kept, monkeypatch):
    found = [(trial(100), "a"), (trial(90), "b")]
    made, rivals = contest(monkeypatch, found, free * 2**30)
    for _ in range(2):
        made.enter("", Plan())
    assert rivals == [None, "a" if kept else None]


def test_where_memory_is_not_counted_the_parameters_tell_what_a_run_needs(monkeypatch):
    module = nn.Linear(1000, 1000, bias=False)  # 4 MB, and 48 for one more run beside it
    for free, kept in ((47e6, False), (49e6, True)):
        found = [(trial(100, 0), "a"), (trial(90, 0), "b")]
        made, rivals = contest(monkeypatch, found, free, module)
        for _ in range(2):
            made.enter("", Plan())
        assert rivals[1] == ("a" if kept else None)


def test_a_plan_that_ran_out_of_memory_beside_the_best_is_tried_alone(monkeypatch):
    short = Trial(Plan(), dropped="CUDA out of memory. Tried to allocate 2 GiB")
    found = [(trial(100), "a"), (short, None), (trial(50), "b")]
    made, rivals = contest(monkeypatch, found)
    made.enter("", Plan())
    assert made.enter("", Plan()) is made.best and not made.best.dropped
    assert rivals == [None, "a", None]


def test_what_was_dropped_is_not_the_best_however_fast(monkeypatch):
    other = replace(trial(10, ratio=0.1), loss=3.0)
    made, _ = contest(monkeypatch, [(trial(100), "a"), (other, "b")])
    made.enter("", Plan())
    assert made.enter("", Plan()).dropped == "its first loss is 3 and not 2"
    assert made.best.step_seconds == 0.1 and made.rival == "a"
