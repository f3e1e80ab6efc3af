"""The table of devices: the same training on each, as text, as JSON and as a picture."""

import json

import pytest

from stepladder.bench.device.image_training import NO_GPU, DeviceRow
from stepladder.cli.main import main
from stepladder.cli.results.bench_tables.image_tables import COLUMNS, cells


def test_devices_are_compared(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("stepladder.bench.device.image_training.DRAWN", (64, 20))
    plot = tmp_path / "d.png"
    words = ["--batch", "32", "--epochs", "1", "--width", "2", "--device", "cpu"]
    assert main(["bench", "devices", *words, "--json", "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["epochs"], found["width"]) == (32, 1, 2)
    ran = [row for row in found["rows"] if row["seconds"]]
    assert [(row["device"], row["precision"]) for row in ran] == [("cpu", "fp32"), ("cpu", "bf16")]
    assert [row["problem"] for row in found["rows"][2:]] == 3 * [NO_GPU]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_speed_ups_are_over_the_first_row_and_absent_rows_are_empty():
    rows = [
        DeviceRow("cpu", "fp32", 8.0, 100.0, 2**21, 0.5, 1.5),
        DeviceRow("cuda", "bf16", 2.0, 400.0, 2**20, 0.75, 1.25, 0.3),
        DeviceRow("cuda", "fp16", problem=NO_GPU),
    ]
    first, second, third = (dict(zip(COLUMNS, row)) for row in cells(rows))
    assert (first["speed-up"], second["speed-up"]) == (1.0, 4.0)
    assert (first["of peak FLOP/s"], second["of peak FLOP/s"]) == ("unknown", "30.0%")
    assert (second["device"], second["test accuracy"], second["peak MiB"]) == (
        "GPU bf16", "75.0%", 1.0,
    )  # fmt: skip
    assert third["note"] == NO_GPU and set(third.values()) == {"GPU fp16", "", NO_GPU}


@pytest.mark.parametrize("option", ["--epochs", "--width"])
def test_other_tables_do_not_read_its_options(capsys, option):
    assert main(["bench", "zero", option, "3"]) == 2
    assert f"{option}: the table 'zero' does not read it" in capsys.readouterr().err
