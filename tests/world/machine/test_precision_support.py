"""What each precision may use, by generation and by trying."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.hardware import find_device
from stepladder.world import detect_machine
from stepladder.world.machine.machine import Accelerator, DetectedMachine
from stepladder.world.machine.precision_support import expected, precision_support, try_matmul

NOTHING: frozenset[str] = frozenset()


@pytest.fixture(scope="module")
def machine() -> DetectedMachine:
    return detect_machine()


def card(architecture: str) -> Accelerator:
    return Accelerator("card", 1, architecture, find_device("H200"))


def answers(architecture: str) -> dict[str, str]:
    names = ("fp32", "tf32", "fp16", "bf16", "fp8")
    return {name: expected(name, card(architecture), NOTHING)[0] for name in names}


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [
        ("6.0", "yes no emulated emulated no"),
        ("7.0", "yes no yes emulated no"),
        ("7.5", "yes no yes emulated no"),
        ("8.0", "yes yes yes yes no"),
        ("8.6", "yes yes yes yes no"),
        ("8.9", "yes yes yes yes yes"),
        ("9.0", "yes yes yes yes yes"),
        ("10.0", "yes yes yes yes yes"),
        ("12.0", "yes yes yes yes yes"),
        ("gfx90a", "yes no yes yes no"),
        ("gfx942", "yes yes yes yes yes"),
        ("gfx950", "yes no yes yes yes"),
        ("gfx1100", "yes no emulated emulated no"),
    ],
)
def test_each_generation_supports_what_its_matrix_units_do(architecture, wanted):
    assert " ".join(answers(architecture).values()) == wanted


def test_the_reason_names_the_generation():
    assert expected("bf16", card("7.5"), NOTHING) == (
        "emulated",
        "computed in float32 and rounded: no faster (compute capability 7.5)",
    )
    assert expected("fp8", card("9.0"), NOTHING)[1] == "matrix units of compute capability 9.0"


def test_a_processor_is_judged_by_its_flags():
    assert expected("bf16", None, frozenset({"amx_bf16"})) == ("yes", "processor has amx_bf16")
    assert expected("bf16", None, NOTHING)[0] == "emulated"
    assert expected("tf32", None, NOTHING)[0] == "no"
    assert expected("fp8", None, NOTHING)[0] == "emulated"


def test_every_row_was_tried_on_this_machine(machine):
    rows = {row.precision: row for row in precision_support(machine)}
    assert list(rows) == ["fp32", "tf32", "fp16", "bf16", "fp8"]
    assert rows["fp32"].answer == "yes"


def test_the_peak_comes_from_the_table_and_only_for_what_is_supported(machine):
    h200 = find_device("H200")
    there = replace(machine, cluster=replace(machine.cluster, device=h200))
    rows = {row.precision: row for row in precision_support(there)}
    assert rows["fp32"].peak == h200.peak("fp32")
    if not machine.seen:
        assert rows["tf32"].peak is None and rows["fp8"].peak is None


def test_a_type_that_torch_refuses_is_not_supported():
    assert try_matmul("fp32", "cpu") is None
    refusal = try_matmul("bf16", "no-such-device")
    assert refusal is not None and "no-such-device" in refusal


def test_a_machine_whose_device_refuses_says_so(machine):
    if machine.seen:
        pytest.skip("this machine has a GPU")
    pretended = replace(machine, seen=(card("9.0"),))
    row = precision_support(pretended)[0]
    assert row.answer == "no" and row.because.startswith("tried, and torch refused: ")
    assert row.peak is None
