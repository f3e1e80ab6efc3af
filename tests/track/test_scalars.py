"""Every tracker gets the same names for the same numbers."""

import math

from stepladder.record import Report
from stepladder.track.scalars import scalars


def test_a_step_becomes_numbers_people_know():
    report = Report(4, 2.5, 1.0, 0.1, 10, 0.5, 2**30, 1234.0, mfu=None, loss_scale=8.0)
    assert scalars("step", report.to_dict()) == {
        "train/loss": 2.5,
        "train/grad_norm": 1.0,
        "train/lr": 0.1,
        "train/loss_scale": 8.0,
        "speed/tokens_per_second": 1234.0,
        "speed/step_seconds": 0.5,
        "speed/data_seconds": 0.0,
        "memory/peak_bytes": float(2**30),
    }


def test_other_kinds_have_names_of_their_own():
    assert scalars("evaluation", {"step": 3, "loss": 2}) == {"validation/loss": 2.0}
    assert scalars("logged", {"step": 3, "name": "val/f1", "value": 0.5}) == {"val/f1": 0.5}
    assert scalars("device", {"step": 3, "utilisation": 0.5, "source": "card"}) == {
        "device/utilisation": 0.5
    }
    assert scalars("memory", {"step": 1, "owners": {"logits": 7}}) == {"memory/logits": 7.0}
    assert scalars("collectives", {"seconds": {"all_reduce": 0.1}}) == {
        "collectives/all_reduce": 0.1
    }
    assert scalars("ranks", {"own_seconds": [1.0, 3.0]}) == {
        "ranks/slowest_seconds": 3.0,
        "ranks/mean_seconds": 2.0,
    }


def test_what_is_no_finite_number_goes_nowhere():
    for value in (math.nan, math.inf, None, "nan", True, [1.0]):
        assert scalars("evaluation", {"loss": value}) == {}
    for kind in ("start", "event", "save", "dream"):
        assert scalars(kind, {"step": 3, "loss": 1.0}) == {}
    assert scalars("ranks", {"own_seconds": None}) == scalars("memory", {"owners": 3}) == {}


def test_each_term_of_the_loss_has_a_name_below_it():
    report = Report(4, 2.5, 1.0, 0.1, 10, 0.5, 2**30, 1234.0, terms={"kl": 0.5})
    assert scalars("step", report.to_dict())["train/loss/kl"] == 0.5
