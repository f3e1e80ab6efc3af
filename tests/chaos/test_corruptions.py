"""The short form of the corruptions: every kind of damage, a few times."""

from .corruptions import HARMS, run_cases


def test_all_damage_is_noticed_and_none_of_it_loaded(tmp_path):
    found = run_cases(4 * len(HARMS), 1, tmp_path)
    assert found["wrong"] == []
    assert set(found["kinds"]) == set(HARMS)
