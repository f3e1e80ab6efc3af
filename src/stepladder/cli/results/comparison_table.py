"""The table a run ends with: forecast beside measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .tables import digits, signed_percent, size, table

if TYPE_CHECKING:
    from stepladder.job import TrainResult
    from stepladder.job.summary.forecast_comparison import ComparisonRow

MANY = 10  # times too much: no percentage says more
NOTHING = 2**10  # bytes, of which a share says nothing
SCALES = {
    "seconds": (1e3, "ms"),
    "run seconds": (1.0, "s"),
    "tokens/s": (1.0, ""),
}


def show_comparison(result: TrainResult) -> None:
    print()
    rows = [cells(row) for row in result.comparison if not is_cause(row)]
    table("Forecast and measured", ["what", "forecast", "measured", "error"], rows)
    if causes := [cells(row) for row in result.comparison if is_cause(row)]:
        listed = ", ".join(f"{name} {time}" for name, time, *_ in causes)
        print(f"A step's forecast by cause: {listed}. 'stepladder profile' measures the causes.")
    if result.no_forecast_because:
        print(f"Nothing was forecast: {result.no_forecast_because}")
    elif result.forecast and result.forecast.time is None:
        print("\n".join(result.forecast.reasons), "'stepladder calibrate' measures it.")
    if result.calibration_update:
        print(result.calibration_update)


def is_cause(row: ComparisonRow) -> bool:
    """Whether this is a part of a step's time, which a run forecasts and does not measure."""
    return row.unit == "seconds" and row.measured is None and row.name != "step"


def cells(row: ComparisonRow) -> list[object]:
    return [row.name, shown(row.forecast, row.unit), shown(row.measured, row.unit), off(row)]


def off(row: ComparisonRow) -> str:
    """The forecast's error in percent."""
    if row.error is None:
        return "unknown"
    if row.unit == "bytes" and min(row.forecast or 0, row.measured or 0) < NOTHING:
        return ""  # a ratio of next to nothing
    # Memory is by owner at the peak; an owner whose own peak is elsewhere has next to nothing.
    return signed_percent(row.error) if row.error < MANY - 1 else f"over {MANY} ×"


def shown(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "bytes":
        return size(value)
    scale, name = SCALES[unit]
    return f"{digits(value * scale, 4)} {name}".rstrip()
