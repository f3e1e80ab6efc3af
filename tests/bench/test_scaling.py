from stepladder.bench.scaling import losses, mean_causes


def test_a_loss_is_what_a_cause_takes_beyond_its_fair_share():
    found = losses({"matrix": 0.6, "communication": 0.4}, {"matrix": 0.5, "communication": 0.0})
    assert list(found) == ["communication", "matrix"]
    assert found["communication"] == 0.4
    assert abs(found["matrix"] - 0.1) < 1e-9


def test_what_got_cheaper_and_what_is_too_little_is_not_named():
    assert losses({"matrix": 0.995, "host": 0.005}, {"matrix": 1.2, "host": 0.0}) == {}


def test_causes_are_averaged_over_the_ranks():
    assert mean_causes([{"matrix": 1.0}, {"matrix": 3.0}]) == {"matrix": 2.0}
