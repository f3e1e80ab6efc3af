"""A recipe profiled by a program: a typed result, nothing printed."""

from stepladder.job import profile
from stepladder.plan import Plan, read_recipe
from stepladder.record import read_journal


def test_a_profile_is_returned_shown_and_written_to_the_journal(tmp_path, capfd):
    recipe = read_recipe(None, [
        "--model.name", "gpt-tiny", "--model.sequence", "32", "--train.batch", "4",
        "--train.device", "cpu", "--run.folder", str(tmp_path / "run"),
    ])  # fmt: skip
    shown = []
    found = profile(recipe, plan=Plan.parse("fp32"), steps=1, show=shown.append)
    assert shown == [found] and found.memory is None and found.forecast_moments == ()
    assert found.profile.step_seconds > 0 and found.folder == tmp_path / "run" / "profile"
    (entry,) = read_journal(tmp_path / "run", kind="profile")
    assert entry["step_seconds"] == found.profile.step_seconds
    assert capfd.readouterr().out == ""
