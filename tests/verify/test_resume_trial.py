"""A run that is killed and resumed is told from one that goes on a little differently."""

import random
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from stepladder.errors import PlanError, WorldError
from stepladder.plan import Optimizer, Plan
from stepladder.rungs import LossScale
from stepladder.train import run
from stepladder.train.checkpointing import own_file
from stepladder.verify import find_subject
from stepladder.verify import resume_trial as resumption
from stepladder.verify.resume_trial import compare_journey, make_journey, travel_leg

GPT = "gpt:layers=1,hidden=16,heads=2,vocab=32"


class Here:
    """Ranks that are this process: what a test of many journeys can afford."""

    def call(self, function, leg, ranks):
        function(leg)

    def restart(self):
        pass


def journey(*plans, model=GPT, dropout=True, **how):
    subject = replace(find_subject(model, 0.2), dropout=dropout)
    return make_journey(subject, [Plan.parse(plan) for plan in plans], **how)


def kill(leg):
    resumption.killed(leg).touch()
    raise WorldError("ranks", "was killed")


def compare(folder, course, fault=None):
    """The finding, with a mistake planted in the leg that resumes."""

    def travel(leg):
        with patch.object(resumption, "kill", kill):
            if fault is None or not leg.resumes:
                return travel_leg(leg)
            with fault():
                return travel_leg(leg)

    return compare_journey(Here(), course, folder, travel)


@pytest.mark.parametrize("plan", ["fp32", "fp16", "bf16-pure"])
def test_a_resumed_run_has_the_same_bits(tmp_path, plan):
    found = compare(tmp_path, journey(plan))
    assert (found.verdict, found.different, found.loss, found.parameters) == ("same bits", (), 0, 0)
    # Saved after four steps; the fifth was taken and the sixth begun when it was killed.
    assert (found.killed_in, found.resumed_at) == ((5,), (4,))
    assert len(found.expected) == 8 and found.found == found.expected


def test_another_plan_may_differ_by_rounding_only(tmp_path):
    found = compare(tmp_path, journey("fp32 micro=2", "fp32 micro=8", dropout=False))
    assert found.verdict == "same" and 0 < found.loss < 1e-5
    assert found.plan == "fp32 micro=2 → fp32 micro=8"


def test_a_plain_torch_loop_takes_the_same_steps_where_nothing_is_drawn(tmp_path):
    found = compare(tmp_path, journey("fp32 micro=2", dropout=False))
    assert found.verdict == "same bits" and 0 < found.plain < 1e-5
    drawn = compare(tmp_path / "drawn", journey("fp32 micro=2"))
    assert (drawn.verdict, drawn.plain) == ("same bits", None)


def test_a_mistake_of_both_runs_is_seen_by_the_plain_loop(tmp_path):
    scaled = LossScale.scaled
    doubled = patch.object(LossScale, "scaled", lambda self, loss: 2 * scaled(self, loss))
    with doubled:
        found = compare(tmp_path, journey("fp32", dropout=False, optimizer="sgd lr=0.1"))
    assert (found.verdict, found.loss) == ("DIFFERENT", 0.0)
    assert found.different == ("losses: they part from a plain torch loop's at step 1",)


def test_a_run_may_be_killed_several_times(tmp_path):
    found = compare(tmp_path, journey("fp32", "fp32", "fp32", steps=12))
    assert found.verdict == "same bits"
    assert (found.killed_in, found.resumed_at) == ((5, 9), (4, 8))


@contextmanager
def generators_not_restored():
    with patch.object(own_file, "set_generators", lambda states, device: None):
        random.seed(77)
        np.random.seed(77)
        yield


@contextmanager
def after_loading(change):
    load = run.load

    def changed(taken, folder, **how):
        path = load(taken, folder, **how)
        with torch.no_grad():
            change(taken)
        return path

    with patch.object(run, "load", changed):
        yield


def moved_cursor():
    return after_loading(lambda taken: setattr(taken, "position", taken.position + 1))


def lost_moment():
    def forget(taken):
        next(iter(taken.optimizer.state.values()))["exp_avg"].zero_()

    return after_loading(forget)


def lost_scale():
    def forget(taken):
        taken.scale.good_steps.zero_()

    return after_loading(forget)


def other_dropout():
    return after_loading(lambda taken: setattr(taken, "seed", taken.seed + 1))


def lost_parameter():
    return after_loading(lambda taken: taken.climbed.shards[0].owned.view(-1)[:1].add_(1e-6))


@contextmanager
def lost_shuffle():
    feed = run.feed
    with patch.object(run, "feed", lambda *args, seed, **how: feed(*args, seed=seed + 1, **how)):
        yield


@pytest.mark.parametrize(
    ("fault", "plan", "said"),
    [
        (generators_not_restored, "fp32", "random generators: the draws part at step 4"),
        (moved_cursor, "fp32", "data: the rows part at step 4"),
        (lost_moment, "fp32", "losses: they part at step 5"),
        (lost_scale, "fp16", "loss scale: {"),
        (other_dropout, "fp32", "losses: they part at step 4"),
        (lost_parameter, "fp32", "parameters: '"),
        (lost_shuffle, "fp32", "data: the rows part at step 4"),
    ],
)
def test_whatever_is_not_restored_is_seen(tmp_path, fault, plan, said):
    found = compare(tmp_path, journey(plan), fault)
    assert found.verdict == "DIFFERENT" and not found.same
    assert any(line.startswith(said) for line in found.different), found.different


@pytest.mark.parametrize("fault", [moved_cursor, lost_shuffle])
def test_other_layouts_must_read_the_same_rows(tmp_path, fault):
    found = compare(tmp_path, journey("fp32 micro=2", "fp32 micro=8", dropout=False), fault)
    assert found.different[0] == "data: the rows part at step 4"


def test_other_layouts_must_have_the_same_losses(tmp_path):
    found = compare(tmp_path, journey("fp32 micro=2", "fp32 micro=8", dropout=False), lost_moment)
    assert found.verdict == "DIFFERENT" and found.loss > found.tolerance
    assert found.different == ("losses: they part from a plain torch loop's at step 5",)


def test_a_leg_that_fails_of_itself_is_told(tmp_path):
    def travel(leg):
        raise ZeroDivisionError("of the user's own")

    found = compare_journey(Here(), journey("fp32"), tmp_path, travel)
    assert (found.verdict, found.problem) == ("BROKE", "ZeroDivisionError: of the user's own")


def test_a_global_batch_that_all_legs_can_share_is_found():
    legs = journey("fp32 ddp replicate=2", "fp32 zero3 shard=3", "fp32", steps=12).plans
    assert {plan.batch.sequences for plan in legs} == {24}
    assert [plan.batch.micro_batches for plan in legs] == [6, 4, 12]


def test_an_optimizer_that_a_plan_names_is_the_journeys():
    named = "fp32 optimizer='sgd lr=0.1'"
    for plans in ((named,), ("fp32 ddp replicate=2", named)):
        assert {str(plan.optimizer) for plan in journey(*plans).plans} == {"sgd lr=0.1"}
    assert journey("fp32").plans[0].optimizer == Optimizer.parse(resumption.RESUMED)
    with pytest.raises(PlanError, match="name 'sgd lr=0.1' and 'adam'; a run resumes with the one"):
        journey(named, "fp32 optimizer=adam")


def test_too_few_steps_say_how_many_it_takes():
    with pytest.raises(PlanError, match="7 are too few to save, go on.*Use 8 or more."):
        journey("fp32", steps=7)
