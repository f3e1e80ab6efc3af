import pytest

from stepladder.errors import RecordError
from stepladder.record import Calibration


def test_a_calibration_is_read_back(tmp_path) -> None:
    written = Calibration(
        device="H200", matrix_flops_per_second={"bf16": 6e14}, launch_seconds=5e-6
    )
    written.save(tmp_path / "calibration.json")
    assert Calibration.load(tmp_path / "calibration.json") == written


def test_a_folder_that_cannot_be_written_says_so(tmp_path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        Calibration().save(tmp_path / "nowhere" / "calibration.json")


def test_a_damaged_file_names_the_way_out(tmp_path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(RecordError, match=r"cannot be read .* 'stepladder calibrate'"):
        Calibration.load(tmp_path / "c.json")


def test_a_foreign_file_is_refused(tmp_path) -> None:
    (tmp_path / "c.json").write_text('{"colour": 1}')
    with pytest.raises(RecordError, match="holds something else"):
        Calibration.load(tmp_path / "c.json")
