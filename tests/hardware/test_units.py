"""Units survive being written and read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepladder.hardware.units import SPEEDS, read_speed, write_latency, write_size, write_speed


def test_bits_are_an_eighth_of_bytes():
    assert read_speed("", 8, "Gb/s") == read_speed("", 1, "GB/s") == 1e9
    assert read_speed("", 8, "Gbps") == read_speed("", 1, "GBps") == 1e9


@given(st.floats(1.0, 1e16), st.sampled_from(sorted(SPEEDS)), st.sampled_from([1, 2]))
def test_a_written_speed_reads_back_to_the_last_bit(speed, unit, directions):
    number, written, *rest = write_speed(speed, unit, directions).split()
    quoted = 1 if rest == ["per", "direction"] else directions
    assert read_speed("", float(number), written) / quoted == speed


def test_round_numbers_stay_round():
    assert write_speed(450e9, "GB/s", 2) == "900 GB/s"
    assert write_speed(1 / 3, "GB/s", 1) == "0.3333333333333333 B/s per direction"
    assert write_size(3 * 2**29) == "1.5 GiB"
    assert write_size(2 * 10**12) == "2 TB"
    assert write_size(24104 * 2**20) == "24104 MiB"
    assert write_size(10**9 + 1) == "1000000001 B"
    assert write_latency(3.4e-6) == "3.4 us"
