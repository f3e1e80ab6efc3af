"""Prices are shown in units that leave something in front of the point."""

import pytest

from stepladder.cli.results.price import ENERGIES, MASSES, TIMES, in_unit, money, number


@pytest.mark.parametrize(
    ("value", "units", "shown"),
    [
        (321_000.0, ENERGIES, "321 MWh"),
        (999.0, ENERGIES, "999 kWh"),
        (0.0123, ENERGIES, "12.3 Wh"),
        (0.0000123, ENERGIES, "0.0123 Wh"),
        (2500.0, MASSES, "2.5 t"),
        (0.02, MASSES, "20 g"),
        (86400 * 522.4, TIMES, "522 days"),
        (90.0, TIMES, "1.5 minutes"),
        (None, TIMES, "unknown"),
    ],
)
def test_a_value_is_shown_in_the_largest_unit_it_fills(value, units, shown) -> None:
    assert in_unit(value, units) == shown


def test_small_sums_are_not_rounded_to_nothing() -> None:
    assert [money(value) for value in (1234567.0, 12.3, 0.05, 0.0004, None)] == [
        "$1,234,567",
        "$12.30",
        "$0.05",
        "$0.0004",
        "unknown",
    ]
    assert [number(value) for value in (123456.0, 12.34, 0.0, None)] == [
        "123,456",
        "12.3",
        "0",
        "unknown",
    ]
