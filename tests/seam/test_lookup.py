"""Stepladder without the private names of torch: it imports, trains, and refuses by name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepladder.errors import UnsupportedTorch
from stepladder.seam import NAMES, PrivateName, find, has

PROGRAM = Path(__file__).with_name("without_names.py")
REFUSING = [name for name in NAMES if name.feature and not name.on_instances]


def run_without(*paths: str) -> str:
    done = subprocess.run(
        [sys.executable, PROGRAM, *paths], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_device_trains_and_every_module_imports_without_any_private_name():
    said = run_without(*(name.path for name in NAMES if not name.on_instances))
    assert "touched []" in said
    assert int(re.search(r"deleted (\d+)", said)[1]) > 15
    assert re.search(r"loss \d\.\d{3}", said)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.path)
def test_one_device_trains_without_a_single_name(name):
    if not name.on_instances:
        assert "touched []" in run_without(name.path)


@pytest.mark.parametrize("name", REFUSING, ids=lambda name: name.path)
def test_a_feature_is_refused_by_the_name_it_lacks(name, without):
    without(name.path)
    with pytest.raises(UnsupportedTorch) as raised:
        find(name.path)
    version = torch.__version__
    said = f"{name.field}: torch {version} has no {name.path}, which {name.feature} needs."
    assert str(raised.value) == f"{said} {name.remedy}"
    assert name.field and name.remedy and not name.fallback


@pytest.mark.parametrize("name", [n for n in NAMES if not n.feature], ids=lambda name: name.path)
def test_a_name_without_a_refusal_has_a_fallback(name, without):
    assert name.fallback and not name.field and not name.remedy
    if not name.on_instances:
        without(name.path)
        assert not has(name.path)


def test_a_name_that_is_not_listed_is_not_looked_up():
    with pytest.raises(KeyError):
        find("torch._C._nobody_listed_this")
    with pytest.raises(AssertionError):
        has("torch._C._nobody_listed_this")


def test_names_of_this_torch_are_found():
    """Every one, but for the recorder of a build with NCCL."""
    assert [
        name.path
        for name in NAMES
        if not name.on_instances and torch.__version__.startswith("2.13") and not has(name.path)
    ] in ([], ["torch._C._distributed_c10d._dump_nccl_trace"])


def test_the_table_says_what_happens_without_a_name():
    refused = PrivateName("torch._x", "all", field="plan", feature="zero3", remedy="Use zero2.")
    assert refused.without == "refused: zero3"
    assert PrivateName("torch._x", "all", "one call a tensor").without == "one call a tensor"
