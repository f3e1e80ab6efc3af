from stepladder.job.monitoring.tuned_speed import TunedSpeed
from stepladder.record import Report


def report(step, seconds):
    return Report(
        step=step, loss=1.0, grad_norm=1.0, lr=0.1, tokens=4, seconds=seconds, memory_bytes=0,
        tokens_per_second=4 / seconds,
    )  # fmt: skip


def test_the_speed_of_the_trials_is_said_once_when_it_is_reached():
    speed = TunedSpeed(0.050)
    assert speed.look(report(0, 3.0), 3.0) == ""  # with the compiler in it
    assert speed.look(report(10, 0.056), 4.0) == ""
    assert speed.look(report(20, 0.052), 5.25) == (
        "step 20: 52 ms a step, as in the trials (50 ms), 5.25 s after the start"
    )
    assert speed.look(report(30, 0.050), 6.0) == ""


def test_of_a_plan_that_was_not_tried_nothing_is_said():
    assert TunedSpeed(None).look(report(0, 1e-9), 1.0) == ""
