"""Bad steps are found though nobody read their reports, and each policy does what it says."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.errors import NonFinite, PlanError
from stepladder.train import as_batch, climb
from stepladder.train.health.nonfinite import HALVINGS, RECOVERY, Health
from tests.train.toys import net, pairs, same_bits


def start(policy="stop", plan="fp32", module=None):
    return climb(
        module or net(), loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, nonfinite=policy
    )


def poisoned(row=2):
    inputs, targets = pairs(1)[0]
    inputs[row] = float("nan")
    return inputs, targets


def test_a_policy_nobody_knows_names_those_there_are():
    said = "'hope' is not a policy. Choose one of: stop, skip, backoff."
    with pytest.raises(PlanError, match=said):
        Health("hope")


def test_a_bad_step_whose_report_nobody_reads_is_found_by_the_next():
    run = start()
    good = pairs(4)
    for batch in (good[0], poisoned(), good[1]):
        run.step(batch)
    with pytest.raises(NonFinite, match="^step 1: loss nan: rank 0 in samples 8 to 15, gradient"):
        run.step(good[2]).read()


class NoWaiting(TorchDispatchMode):
    """Refuses to bring a number from the device to the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "waits for the device"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("plan", ["fp32 micro=2", "fp16"])
def test_no_step_waits_to_know_how_it_went(plan):
    run = start("backoff", plan)
    for given in (*pairs(2), poisoned()):
        batch = as_batch(given, run.position)
        with NoWaiting():
            pending = run.update(batch, run.gradients(batch))
    assert pending.skipped


def test_a_report_waits_for_no_later_step():
    run = start()
    first, _ = run.step(pairs(1)[0]), run.step(poisoned())
    assert first.loss > 0
    assert [mark.step for mark in run.health.unread] == [1]


def test_skipping_says_which_and_goes_on():
    run = start("skip")
    assert run.step(poisoned()).skipped
    assert not run.step(pairs(1)[0]).skipped
    assert run.events == [
        "step 0: loss nan: rank 0 in sample 2, first in module 'first', gradient of 'first.weight' "
        "not finite; the update was left out"
    ]
    assert run.lr == 0.1


def test_several_bad_steps_between_two_reports_are_one_event():
    run = start("skip")
    for _ in range(3):
        run.step(poisoned())
    run.step(pairs(1)[0]).read()
    assert len(run.events) == 1 and run.events[0].startswith("step 0 and 2 more: loss nan")


def test_backing_off_halves_the_rate_and_good_steps_bring_it_back():
    run = start("backoff")
    run.step(poisoned()).read()
    assert run.lr == 0.05 and run.events[0].endswith(
        "the learning rate is now 0.5 of its schedule's"
    )
    run.step(poisoned()).read()
    assert run.lr == 0.025
    (batch,) = pairs(1)
    for step in range(RECOVERY):
        report = run.step(batch)
        if step % 7 == 0:
            report.read()
    report.read()
    assert report.lr == 0.025 and run.lr == 0.05
    for _ in range(RECOVERY):
        run.step(batch).read()
    assert run.lr == 0.1


def test_backing_off_ends_where_it_does_not_help():
    run, before = start("backoff"), net()
    for _ in range(HALVINGS):
        run.step(poisoned()).read()
    with pytest.raises(NonFinite, match="8 halvings of the learning rate did not help"):
        run.step(poisoned()).read()
    assert run.lr == 0.1 / 2**HALVINGS and same_bits(run.module, before)


def test_a_resumed_run_has_backed_off_as_far_and_remembers_what_losses_are_usual(tmp_path):
    run = start("backoff")
    for batch in [*pairs(3), poisoned(), *pairs(2)]:
        run.step(batch)  # nobody reads: the save has to look
    run.save(tmp_path)
    other = start("backoff", module=net(seed=5))
    other.load(tmp_path)
    assert other.lr == run.lr == 0.05
    assert list(other.health.spikes.losses) == list(run.health.spikes.losses) != []
    assert other.health.calm == run.health.calm == 2
