"""What a device answers about itself."""

from __future__ import annotations

import pickle

import pytest

from stepladder.errors import PlanError
from stepladder.hardware import Device, find_device, unknown_device
from stepladder.hardware.device import COMPUTE_TYPES


def test_a_peak_is_looked_up_by_compute_type():
    assert find_device("A100-80GB").peak("tf32") == 156e12
    assert find_device("A100-80GB").peak("fp8") is None


def test_a_misspelt_compute_type_is_refused_rather_than_unknown():
    with pytest.raises(PlanError) as error:
        find_device("H200").peak("bf61")
    assert str(error.value) == "compute: 'bf61' is not a compute type. Did you mean 'bf16'?"


def test_an_unknown_device_has_memory_and_nothing_else():
    device = unknown_device("NVIDIA Foo", "NVIDIA", 10 * 2**30, find_device("H200").board)
    assert device.memory_bytes == 10 * 2**30
    assert device.bandwidth_bytes_per_second is None
    assert [device.peak(compute) for compute in COMPUTE_TYPES] == [None] * len(COMPUTE_TYPES)
    assert device.link == find_device("H200").link


def test_a_device_is_a_value():
    device = find_device("H200")
    copied = pickle.loads(pickle.dumps(device))
    assert copied == device and hash(copied) == hash(device)
    assert isinstance(device, Device) and str(device) == "H200"


def test_only_processors_work_out_of_host_memory():
    assert find_device("CPU").is_cpu and find_device("EPYC-9654").is_cpu
    assert not find_device("T4").is_cpu


def test_gddr_boards_with_error_correction_show_fifteen_sixteenths():
    assert find_device("L4").memory_bytes == 22.5 * 2**30
    assert find_device("RTX4090").memory_bytes == 24 * 2**30
