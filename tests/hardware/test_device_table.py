"""The device table: complete, sourced, dense, and found by any of its names."""

from __future__ import annotations

import re

import pytest

from stepladder.errors import PlanError
from stepladder.hardware import find_device, recognise_device
from stepladder.hardware.device import COMPUTE_TYPES
from stepladder.hardware.device_names import SHORT, SHOWN
from stepladder.hardware.device_table import DEVICES, USUAL
from stepladder.hardware.prices import PRICES

ACCELERATORS = [row for row in DEVICES.values() if not row.is_cpu]

# Dense figures from the datasheets, in TFLOP/s; the sparse ones are twice these.
DENSE = {
    ("V100-32GB", "fp16"): 125,
    ("T4", "fp16"): 65,
    ("A10", "bf16"): 125,
    ("A10G", "bf16"): 70,
    ("A30", "bf16"): 165,
    ("A40", "bf16"): 149.7,
    ("A6000", "bf16"): 154.8,
    ("A100-40GB", "bf16"): 312,
    ("A100-80GB", "bf16"): 312,
    ("A100-80GB", "tf32"): 156,
    ("A100-80GB", "fp32"): 19.5,
    ("A800", "bf16"): 312,
    ("L4", "bf16"): 121,
    ("L40", "bf16"): 181.05,
    ("L40S", "bf16"): 362.05,
    ("L40S", "fp8"): 733,
    ("RTX3090", "bf16"): 71.2,
    ("RTX4090", "bf16"): 165.2,
    ("RTX4090", "fp8"): 330.3,
    ("RTX5090", "bf16"): 209.5,
    ("H100-80GB", "bf16"): 989.4,
    ("H100-80GB", "fp8"): 1978.9,
    ("H100-80GB", "tf32"): 494.7,
    ("H100-80GB", "fp32"): 66.9,
    ("H100-96GB", "bf16"): 989.4,
    ("H100-PCIe", "bf16"): 756,
    ("H100-NVL", "bf16"): 835.5,
    ("H200", "bf16"): 989.4,
    ("H20", "bf16"): 148,
    ("B200", "bf16"): 2250,
    ("B200", "fp8"): 4500,
    ("GB200", "bf16"): 2500,
    ("MI250X", "bf16"): 191.5,
    ("MI300X", "bf16"): 1307.4,
    ("MI300X", "fp8"): 2614.9,
    ("MI355X", "bf16"): 2516.6,
    ("TPU-v5e", "bf16"): 197,
    ("TPU-v5p", "bf16"): 459,
    ("Gaudi2", "bf16"): 432,
}


@pytest.mark.parametrize("name, compute", DENSE)
def test_peaks_are_the_dense_ones(name, compute):
    assert DEVICES[name].peak(compute) == pytest.approx(DENSE[name, compute] * 1e12, rel=1e-12)


def test_there_are_at_least_thirty_accelerators_and_those_the_design_names():
    assert len(ACCELERATORS) >= 30
    named = "V100-32GB T4 A10 A100-40GB A100-80GB A800 L4 L40S RTX4090 H100-80GB H100-96GB H200"
    assert set(named.split()) | {"B200", "MI300X"} <= set(DEVICES)


@pytest.mark.parametrize("row", DEVICES.values(), ids=str)
def test_every_row_has_a_dated_source(row):
    assert row.name == "CPU" or re.search(r"\b20\d\d\b", row.source)
    assert row.name in DEVICES and row.vendor
    assert set(row.peaks) <= set(COMPUTE_TYPES)


@pytest.mark.parametrize("row", ACCELERATORS, ids=str)
def test_every_accelerator_has_memory_bandwidth_and_a_16_bit_peak(row):
    assert 14 * 2**30 < row.memory_bytes < 300 * 2**30
    assert 250e9 < row.bandwidth_bytes_per_second < 9e12
    assert row.peak("bf16") or row.peak("fp16")
    assert row.link.bytes_per_second >= 16e9
    assert row.devices_per_node >= 1


@pytest.mark.parametrize("row", DEVICES.values(), ids=str)
def test_narrower_types_are_never_slower(row):
    peaks = [row.peak(c) for c in ("fp32", "tf32", "bf16", "fp8") if row.peak(c) is not None]
    assert peaks == sorted(peaks)
    if row.peak("bf16") and row.peak("fp16"):
        assert row.peak("bf16") == row.peak("fp16")


@pytest.mark.parametrize("row", ACCELERATORS, ids=str)
def test_a_peak_is_not_out_of_proportion_to_memory_bandwidth(row):
    # FLOP per byte of balance: a sparse or misplaced figure stands out of this range.
    best = max(row.peak("bf16") or 0, row.peak("fp16") or 0)
    assert 25 < best / row.bandwidth_bytes_per_second < 600


def test_devices_that_cannot_do_a_type_have_no_peak_for_it():
    assert DEVICES["V100-32GB"].peak("bf16") is None
    assert DEVICES["T4"].peak("tf32") is None
    assert DEVICES["A100-80GB"].peak("fp8") is None
    assert DEVICES["CPU"].peak("fp32") is None


def test_the_96_gb_h100_says_that_its_peaks_are_an_upper_bound():
    row = DEVICES["H100-96GB"]
    assert row.bandwidth_bytes_per_second == 2.4e12 and row.power_watts == 500
    assert "upper bound" in row.source and "clocks are lower" in row.source


def test_prices_carry_their_source_and_name_devices_that_exist():
    assert set(PRICES) <= set(DEVICES)
    priced = [row for row in DEVICES.values() if row.dollars_per_hour is not None]
    assert len(priced) == len(PRICES)
    for row in priced:
        assert 0.1 < row.dollars_per_hour < 20 and "list" in row.price_source
    assert DEVICES["H20"].dollars_per_hour is None and DEVICES["H20"].price_source == ""


@pytest.mark.parametrize(
    "written, name",
    [
        ("H100", "H100-80GB"),
        ("h100-80gb", "H100-80GB"),
        ("A100", "A100-80GB"),
        ("A100 40GB", "A100-40GB"),
        ("V100", "V100-32GB"),
        ("4090", "RTX4090"),
        ("RTX 4090", "RTX4090"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100", "H100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("cpu", "CPU"),
        ("TPU v5e", "TPU-v5e"),
    ],
)
def test_a_device_is_found_by_what_people_and_torch_call_it(written, name):
    assert find_device(written).name == name


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_found_by_its_own_name(name):
    assert find_device(name) is DEVICES[name]


def test_every_other_name_leads_to_a_row():
    assert set(SHORT.values()) | set(SHOWN.values()) <= set(DEVICES)


def test_a_misspelt_device_is_answered_with_the_nearest():
    with pytest.raises(PlanError) as error:
        find_device("H1000-80GB")
    message = str(error.value)
    assert message.startswith("device: 'H1000-80GB' is not in the device table. Nearest: H100-80GB")
    assert len(message) < 160


def test_a_device_like_no_other_is_answered_with_the_usual_ones():
    with pytest.raises(PlanError) as error:
        find_device("abacus")
    assert str(error.value).startswith("device: 'abacus' is not in the device table. Known: T4, ")
    assert "MI300X" in str(error.value) and "more, all in stepladder" in str(error.value)
    assert set(USUAL) <= set(DEVICES)


@pytest.mark.parametrize(
    "written, name",
    [
        ("H100s", "H100-80GB"),
        ("H100 SXM5 80GB", "H100-80GB"),
        ("RTX 3090 24GB", "RTX3090"),
        ("L4 24GB", "L4"),
        ("A100 GPUs", "A100-80GB"),
    ],
)
def test_a_plural_a_socket_or_the_memory_may_stand_behind_a_name(written, name):
    assert find_device(written).name == name


@pytest.mark.parametrize("written", ["H200 PCIe", "RTX4090 48GB", "A100 60GB"])
def test_a_slot_or_a_memory_that_it_does_not_have_makes_another_device(written):
    with pytest.raises(PlanError, match="Nearest"):
        find_device(written)


@pytest.mark.parametrize(
    "shown, gib, name",
    [
        ("NVIDIA H200", 139.8, "H200"),
        ("NVIDIA A100-SXM4-80GB", 79.3, "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-80GB"),
        ("NVIDIA H100", 94.9, "H100-96GB"),
        ("Tesla T4", 14.6, "T4"),
        ("NVIDIA L4", 22.0, "L4"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX4090"),
        ("NVIDIA B200", 178.4, "B200"),
        ("AMD Instinct MI300X", 191.98, "MI300X"),
    ],
)
def test_torchs_name_and_memory_together_are_recognised(shown, gib, name):
    assert recognise_device(shown, int(gib * 2**30)) is DEVICES[name]


@pytest.mark.parametrize(
    "shown, gib",
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9.5),  # a partition
        ("NVIDIA A100-SXM4-80GB", 9.5),  # a partition that hides it
        ("NVIDIA H100", 79.1),  # the name of the 96 GB part, not its memory
        ("NVIDIA GeForce RTX 2080", 8.0),
        ("H200", 139.8),  # what people write, not what torch shows
        ("", 80.0),
    ],
)
def test_a_device_that_is_not_surely_known_is_not_guessed(shown, gib):
    assert recognise_device(shown, int(gib * 2**30)) is None
