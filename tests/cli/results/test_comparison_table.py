"""The closing table: forecast, measured, and the error in percent."""

from types import SimpleNamespace

from stepladder.cli.results.comparison_table import cells, show_comparison
from stepladder.job.summary.forecast_comparison import ComparisonRow


def result(**given):
    given = {"comparison": (), "no_forecast_because": "", "forecast": None, **given}
    return SimpleNamespace(**{"calibration_update": "", **given})


def test_numbers_have_their_units_and_the_error_its_sign():
    assert cells(ComparisonRow("parameters", 2 * 2**20, 2**20, "bytes")) == [
        "parameters", "2 MiB", "1 MiB", "+100.0%"
    ]  # fmt: skip
    assert cells(ComparisonRow("step", 0.5, 2.0, "seconds"))[1:] == ["500 ms", "2,000 ms", "-75.0%"]
    assert cells(ComparisonRow("memory", 2**20, None, "bytes"))[1:] == [
        "1 MiB", "unknown", "unknown"
    ]  # fmt: skip
    assert cells(ComparisonRow("data", 0.001, 0.0, "seconds"))[1:] == ["1 ms", "0 ms", "unknown"]


def test_next_to_nothing_measured_has_no_percentage():
    assert cells(ComparisonRow("activations", 1e6, 20.0, "bytes"))[-1] == ""
    assert cells(ComparisonRow("activations", 1e8, 1e6, "bytes"))[-1] == "over 10 ×"
    assert cells(ComparisonRow("tokens/s", None, 16608.9, "tokens/s"))[2] == "16,609"
    assert cells(ComparisonRow("activations", 1e6, 2e5, "bytes"))[-1] == "+400.0%"


def test_why_nothing_was_forecast_is_displayed(capsys):
    show_comparison(result(no_forecast_because="no shape"))
    assert "Nothing was forecast: no shape" in capsys.readouterr().out


def test_a_speed_nobody_measured_names_the_command_that_does(capsys):
    unknown = SimpleNamespace(time=None, reasons=("The speed of this CPU is unknown.",))
    show_comparison(result(forecast=unknown))
    assert "'stepladder calibrate' measures it" in capsys.readouterr().out


def test_causes_of_a_step_are_forecast_in_a_sentence_of_their_own(capsys):
    rows = (
        ComparisonRow("matrix", 0.5, None, "seconds"),
        ComparisonRow("step", 0.6, None, "seconds"),
    )
    show_comparison(result(comparison=rows))
    lines = capsys.readouterr().out.splitlines()
    assert sum("matrix" in line for line in lines) == 1
    assert "A step's forecast by cause: matrix 500 ms. 'stepladder profile' measures" in lines[-1]
