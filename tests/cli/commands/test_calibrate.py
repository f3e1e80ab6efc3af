import json

import pytest

from stepladder.cli.commands.calibrate import rows, with_known_links
from stepladder.cli.main import main
from stepladder.record import Calibration, load_calibration
from tests.calibrate.short_probes import shorten


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepladder"


def test_a_calibration_is_saved_where_the_planner_finds_it(cache, capsys, monkeypatch):
    # Short for each and long for all: a busy machine leaves none of them out.
    shorten(monkeypatch)
    assert main(["calibrate", "--device", "cpu", "--seconds", "300"]) == 0
    out = capsys.readouterr().out
    assert "CPU, measured" in out and f"Kept in {cache / 'calibration-cpu.json'}" in out
    found = load_calibration("CPU")
    assert found is not None and found.matrix_flops_per_second["fp32"] > 0
    assert main(["plan", "gpt-tiny", "--on", "1 x CPU", "--batch", "8", "--sequence", "64"]) == 0
    planned = capsys.readouterr().out
    assert "Speeds of CPU as measured" in planned and "Time is unknown" not in planned


def test_another_file_and_json_for_programs(tmp_path, cache, capsys):
    path = tmp_path / "new" / "here.json"
    words = ["--device", "cpu", "--seconds", "0.5", "--out", str(path), "--json"]
    assert main(["calibrate", *words]) in (0, 1)
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("path") == str(path)
    assert Calibration.from_table(shown) == Calibration.load(path)
    assert not cache.exists()


def test_links_measured_before_outlive_a_new_calibration_and_a_damaged_file_is_mended(tmp_path):
    path = tmp_path / "c.json"
    links = {"inside_bytes_per_second": 2e9, "inside_latency_seconds": 3e-6}
    Calibration(device="CPU", launch_seconds=1.0, **links).save(path)
    found = with_known_links(Calibration(device="CPU", launch_seconds=5e-6), path)
    assert found == Calibration(device="CPU", launch_seconds=5e-6, **links)
    assert ["collectives inside a node", "2 GB/s, 3 µs a hop"] in rows(found)
    path.write_text("{")
    assert with_known_links(Calibration(device="CPU"), path) == Calibration(device="CPU")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_no_time_is_refused(seconds, capsys):
    assert main(["calibrate", "--seconds", seconds]) == 2
    assert "is no time to measure in. Use 60." in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_said(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "below" / "c.json"
    assert main(["calibrate", "--device", "cpu", "--seconds", "0.01", "--out", str(out)]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_what_was_not_measured_is_unknown():
    shown = dict(rows(Calibration(matrix_flops_per_second={"bf16": 6e14})))
    assert shown["products in bf16"].startswith("600 TFLOP/s")
    assert shown["streaming"] is None and shown["handing over a kernel"] is None


def test_every_number_has_its_unit():
    found = Calibration(
        attention_flops_per_second={"bf16": 3e14},
        bandwidth_bytes_per_second=4e12,
        optimizer_bytes_per_second=3e12,
        launch_seconds=5e-6,
        context_bytes=500 * 2**20,
    )
    shown = dict(rows(found))
    assert shown["attention in bf16"] == "300 TFLOP/s"
    assert shown["streaming"] == "4,000 GB/s" and shown["optimizer's update"] == "3,000 GB/s"
    assert shown["handing over a kernel"] == "5 µs"
    assert shown["memory of an idle process"] == "500 MiB"
