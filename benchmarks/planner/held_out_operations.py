"""Step times of modules by operations, with constants that were chosen on the other modules.

Each module is left out in turn, whole. Constants that its rows could have bent are chosen anew on
the other modules' rows, from values around the committed ones and without what they are for (the
first value of each), by walking along one constant after another to the smallest mean error.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import log
from types import ModuleType
from typing import Any

from stepladder.rehearse.time import attention, fusion, host_cost, prices

# Where a constant lives and what it may be; the first value stands for not having it.
CONSTANTS: dict[str, tuple[ModuleType, tuple[float, ...]]] = {
    "AMONG_OTHERS": (host_cost, (0.0, 0.3, 0.55, 0.8)),
    "CONVOLVING": (host_cost, (0.0, 2.1, 3.3, 4.5)),
    "BEGINNING": (host_cost, (0.0, 50.0, 100.0, 150.0)),
    "BEGINNING_KEYS": (attention, (0.0, 75.0, 145.0, 220.0)),
    "DRAWN_BYTES": (fusion, (1, 15, 30, 45)),
    "MISALIGNED": (prices, (0.125, 0.17, 0.22)),
    "STREAMING_POWER": (prices, (1.0, 0.5, 0.35)),
}
ROUNDS = 2
Values = tuple[float, ...]
Forecast = Callable[[Any], float]  # seconds of a row, with the constants as they stand


@contextmanager
def constants(values: Values) -> Iterator[None]:
    before = [getattr(module, name) for name, (module, _) in CONSTANTS.items()]
    try:
        put(values)
        yield
    finally:
        put(before)


def put(values: Sequence[float]) -> None:
    for (name, (module, _)), value in zip(CONSTANTS.items(), values):
        setattr(module, name, value)


class Rows:
    """The measured rows, and their logarithmic errors with any constants, each reckoned once."""

    def __init__(self, rows: list[dict[str, Any]], forecast: Forecast) -> None:
        self.rows, self.forecast = rows, forecast
        self.known: dict[Values, list[float]] = {}

    def errors(self, values: Values) -> list[float]:
        if values not in self.known:
            with constants(values):
                self.known[values] = [
                    log(self.forecast(row) / row["step_seconds"]) for row in self.rows
                ]
        return self.known[values]

    def score(self, values: Values, left_out: str) -> float:
        """The mean error of the other modules; each counts once, however many rows it has."""
        found: dict[str, list[float]] = {}
        for row, error in zip(self.rows, self.errors(values)):
            if row["module"] != left_out:
                found.setdefault(row["module"], []).append(abs(error))
        return statistics.mean(statistics.mean(each) for each in found.values())

    def chosen_without(self, module: str) -> Values:
        best: Values = tuple(values[0] for _, values in CONSTANTS.values())
        score = self.score(best, module)
        for _ in range(ROUNDS):
            for place, (_, values) in enumerate(CONSTANTS.values()):
                for value in values:
                    tried = (*best[:place], value, *best[place + 1 :])
                    if (found := self.score(tried, module)) < score:
                        best, score = tried, found
        return best


def held_out(rows: list[dict[str, Any]], forecast: Forecast) -> list[float]:
    """Each row's seconds, by constants that were chosen without its module."""
    every = Rows(rows, forecast)
    found = [0.0] * len(rows)
    for module in dict.fromkeys(row["module"] for row in rows):
        values = every.chosen_without(module)
        print(f"without {module}: {dict(zip(CONSTANTS, values))}", flush=True)
        with constants(values):
            for place, row in enumerate(rows):
                if row["module"] == module:
                    found[place] = forecast(row)
    return found
