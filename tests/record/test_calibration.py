import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import RecordError
from stepladder.record import (
    Calibration,
    Time,
    Timing,
    calibration_path,
    correction_key,
    load_calibration,
)
from stepladder.record.calibration import HOST, Correction

SLOW = Timing("product", "fp32", (8, 16, 32), 1e-3)


def test_a_calibration_is_read_back(tmp_path) -> None:
    written = Calibration(
        device="H200", matrix_flops_per_second={"bf16": 6e14}, launch_seconds=5e-6
    )
    written.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == written


def test_a_folder_that_cannot_be_written_says_so(tmp_path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        Calibration().save(tmp_path / "nowhere" / "calibration.json")


def test_a_reader_meets_no_half_of_it_while_it_is_written(tmp_path) -> None:
    path, found = tmp_path / "c.json", Calibration(device="H200", timings=(SLOW,) * 2000)
    found.save(path)
    with path.open() as reader:
        half = reader.read(100)
        Calibration(device="A100").save(path)
        assert json.loads(half + reader.read())["device"] == "H200"
    assert [each.name for each in tmp_path.iterdir()] == ["c.json"]
    assert Calibration.load(path).device == "A100"


def test_a_damaged_file_names_the_way_out(tmp_path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(RecordError, match=r"cannot be read .* 'stepladder calibrate'"):
        Calibration.load(tmp_path / "c.json")


def test_a_foreign_file_is_refused(tmp_path) -> None:
    (tmp_path / "c.json").write_text('{"colour": 1}')
    with pytest.raises(RecordError, match="holds something else"):
        Calibration.load(tmp_path / "c.json")


def test_timings_and_corrections_are_read_back(tmp_path) -> None:
    written = Calibration(
        device="CPU",
        corrections={"fp32": Correction(1.2, 3)},
        timings=(SLOW,),
    )
    written.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == written


@pytest.mark.parametrize("foreign", ['{"timings": [1]}', '{"corrections": [1]}', "[]"])
def test_a_foreign_table_inside_is_refused(tmp_path, foreign) -> None:
    (tmp_path / "c.json").write_text(foreign)
    with pytest.raises(RecordError, match=r"c.json holds something else. Write it again"):
        Calibration.load(tmp_path / "c.json")


def test_the_first_run_sets_a_correction_and_later_ones_move_it_less() -> None:
    once = Calibration().refined("bf16", 1.5)
    assert once.corrections == {"bf16": Correction(1.5, 1)}
    twice = once.refined("bf16", 1.0)  # the corrected forecast was right: nothing to change
    assert twice.corrections["bf16"] == Correction(1.5, 2)
    many = twice.refined("bf16", 1.0).refined("bf16", 1.0).refined("bf16", 0.8)
    assert many.correction("bf16") == pytest.approx(1.5 + 0.3 * (1.2 - 1.5))
    assert many.correction("fp32") == 1.0


def test_a_run_that_waits_for_its_host_says_nothing_of_the_device() -> None:
    assert correction_key(Time(matrix=0.9, host=0.1), "bf16") == HOST
    assert correction_key(Time(matrix=0.96, host=0.04), "bf16") == "bf16"


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_no_run_can_carry_a_correction_away(ratios) -> None:
    found = Calibration()
    for ratio in ratios:
        found = found.refined("fp32", ratio)
        assert 0.25 <= found.correction("fp32") <= 4.0


def test_each_kind_of_device_has_its_file_in_the_users_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = calibration_path("H100-80GB")
    assert path == tmp_path / "stepladder" / "calibration-h100-80gb.json"
    assert calibration_path("a/../b").parent == path.parent
    assert load_calibration("H100-80GB") is None
    path.parent.mkdir()
    Calibration(device="H100-80GB").save(path)
    assert load_calibration("H100-80GB") == Calibration(device="H100-80GB")


def test_without_a_named_cache_folder_it_is_in_the_home(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration_path("CPU") == tmp_path / ".cache" / "stepladder" / "calibration-cpu.json"
