"""Objects that are saved and restored with a run."""

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.train import climb
from tests.train.toys import net


def start():
    return climb(net(), loss="cross_entropy", plan="fp32")


class Counter:
    """The least that can be registered."""

    def __init__(self, state=None) -> None:
        self.state = state or {"count": 0}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_the_state_of_an_object_goes_on_with_its_run(tmp_path):
    run, counter = start(), Counter({"count": 3, "losses": [0.1, float("inf")], "seen": (1, 2)})
    run.register_for_checkpointing("counter", counter)
    run.save(tmp_path)
    resumed, again = start(), Counter()
    resumed.register_for_checkpointing("counter", again)
    resumed.load(tmp_path)
    assert again.state == counter.state
    assert resumed.events == []


def test_a_scheduler_of_torch_can_be_registered(tmp_path):
    def scheduled():
        run = start()
        schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 2)
        run.register_for_checkpointing("schedule", schedule)
        return run, schedule

    run, schedule = scheduled()
    schedule.last_epoch = 5
    run.save(tmp_path)
    resumed, again = scheduled()
    resumed.load(tmp_path)
    assert again.last_epoch == 5


def test_a_state_that_nobody_asks_for_is_left_out_and_said(tmp_path):
    run = start()
    run.register_for_checkpointing("counter", Counter())
    run.save(tmp_path)
    resumed = start()
    resumed.load(tmp_path)
    left_out = "step-000000 holds the state of 'counter', which is not registered: left out"
    assert resumed.events == [left_out]
    late = "step-000000 holds a 'counter' and was loaded before it was registered"
    with pytest.raises(PlanError, match=late):
        resumed.register_for_checkpointing("counter", Counter())


def test_a_checkpoint_without_the_state_leaves_it_and_says_so(tmp_path):
    start().save(tmp_path)
    resumed, counter = start(), Counter({"count": 4})
    resumed.register_for_checkpointing("counter", counter)
    resumed.load(tmp_path)
    assert counter.state == {"count": 4}
    assert resumed.events == ["step-000000 holds no state of 'counter': it goes on as it is"]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("a/b", Counter(), "name: 'a/b' cannot name an object to save. Use one word."),
        ("", Counter(), "name: '' cannot name an object to save. Use one word."),
        ("known", Counter(), "name: 'known' is registered with this run already. Use another"),
        ("new", object(), "new: object has no state_dict and load_state_dict. Define both."),
    ],
)
def test_what_cannot_be_registered_is_refused(name, given, said):
    run = start()
    run.register_for_checkpointing("known", Counter())
    with pytest.raises(PlanError) as refused:
        run.register_for_checkpointing(name, given)
    assert str(refused.value).startswith(said)


def test_a_state_that_no_checkpoint_can_hold_fails_the_save(tmp_path):
    run = start()
    run.register_for_checkpointing("counter", Counter({"model": net()}))
    said = r"counter: a checkpoint cannot hold its state_dict: a tests\.train\.toys\.Net"
    with pytest.raises(PlanError, match=said):
        run.save(tmp_path)
