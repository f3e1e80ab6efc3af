"""Chips and the levels of memory, held against what vendors publish about the same devices."""

import pytest

from stepladder.hardware import find_device
from stepladder.hardware.chips import CHIPS, MULTIPROCESSORS, find_chip
from stepladder.hardware.device_table import DEVICES
from stepladder.hardware.memory_levels import memory_levels


@pytest.mark.parametrize(("name", "megahertz"), [("A100-80GB", 1410), ("H100-80GB", 1830)])
def test_the_clock_of_a_peak_is_the_one_that_its_datasheet_states(name, megahertz):
    device = find_device(name)
    assert find_chip(device).clock(device) / 1e6 == pytest.approx(megahertz, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "cores", "units"), [("A100-40GB", 6912, 432), ("H100-80GB", 16896, 528)]
)
def test_cores_are_as_many_as_the_whitepaper_counts(name, cores, units):
    chip = find_chip(find_device(name))
    assert (chip.cores, chip.matrix_units) == (cores, units)


def test_every_chip_is_of_a_device_in_the_table_and_every_limit_of_one_that_is_used():
    assert CHIPS.keys() <= DEVICES.keys()
    assert {chip.multiprocessor.capability for chip in CHIPS.values()} == set(MULTIPROCESSORS)
    assert find_chip(find_device("MI300X")) is None


def test_the_levels_of_an_a100_are_those_of_its_whitepaper():
    device = find_device("A100-80GB")
    levels = {level.name: level for level in memory_levels(device, find_chip(device))}
    assert list(levels) == [
        "registers", "shared memory and L1", "L2 cache", "device memory",
        "7 other devices, NVLink", "host memory", "other nodes, InfiniBand, a device's share",
    ]  # fmt: skip
    assert levels["registers"].bytes == 27648 * 1024  # 27,648 KB in the whitepaper
    assert levels["shared memory and L1"].bytes == 20736 * 1024
    assert levels["shared memory and L1"].bytes_per_second == pytest.approx(19.49e12, rel=2e-3)
    assert levels["host memory"].bytes_per_second == 32e9
    assert levels["7 other devices, NVLink"].bytes_per_second == 300e9
    assert levels["device memory"].balance(device) == pytest.approx(312 / 2.039, rel=1e-6)
    assert levels["registers"].balance(device) is None


def test_without_a_chip_the_levels_begin_with_the_devices_own_memory():
    device = find_device("V100-32GB")
    levels = memory_levels(device, find_chip(device))
    assert levels[0].name == "device memory"
    assert levels[0].balance(device) == pytest.approx(125e12 / 900e9)  # fp16: it has no bf16
