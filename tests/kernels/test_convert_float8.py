"""Which linears gain from fp8, and the refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stepladder.errors import PlanError
from stepladder.kernels.convert_float8 import (
    convert_linears,
    float8_linears,
    float8_problems,
    gains,
)
from stepladder.plan.precision import BF16, FP8
from stepladder.rungs.precision.precision import precision

without_torchao = pytest.mark.skipif(find_spec("torchao") is not None, reason="torchao is here")


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 1024)
        self.up = nn.Linear(1024, 4096)
        self.gate = nn.Linear(1024, 4100)
        self.router = nn.Linear(1024, 16)
        self.down = nn.Linear(4096, 1024)
        self.head = nn.Linear(1024, 32000)


def large() -> Large:
    with torch.device("meta"):
        return Large()


def test_large_linears_of_even_shape_are_chosen_and_the_head_is_not() -> None:
    assert float8_linears(large()) == {"up", "down"}


def test_kept_linears_are_not_chosen() -> None:
    model = large()
    assert float8_linears(model, skip={model.down}) == {"up"}


def test_a_model_without_linears_has_none_to_choose() -> None:
    assert float8_linears(nn.Embedding(8, 8)) == frozenset()


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_linear_gains_as_much_as_its_transpose_and_only_in_whole_tiles(a: int, b: int) -> None:
    assert gains(a, b) == gains(b, a)
    assert not gains(a, b) or (a % 16 == b % 16 == 0 and min(a, b) > 512)


@pytest.mark.parametrize(
    ("shape", "gain"),
    [((1024, 1024), True), ((1008, 1024), False), ((528, 8192), False), ((768, 3072), True)],
)
def test_the_edge_lies_where_the_products_pay_for_the_casts(shape, gain: bool) -> None:
    assert gains(*shape) is gain


@without_torchao
def test_a_missing_package_is_named_with_the_way_out() -> None:
    expected = (
        "precision: fp8 needs the package 'torchao', which is not installed. "
        "Install it: pip install torchao; or add kernels=on, on one device; or use bf16."
    )
    assert [str(problem) for problem in float8_problems()] == [expected]
    with pytest.raises(PlanError) as caught:
        precision(large(), FP8, ("head",), torch.device("cpu"))
    assert str(caught.value) == expected


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A package of that name on the path, small enough for a laptop."""
    folder = tmp_path / "torchao"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "float8.py").write_text(
        "def convert_to_float8_training(module, module_filter_fn):\n"
        "    for name, part in module.named_modules():\n"
        "        if module_filter_fn(part, name):\n"
        "            part.converted = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("torchao", "torchao.float8"):
        sys.modules.pop(name, None)


@without_torchao
def test_exactly_the_chosen_linears_are_handed_over(torchao) -> None:
    model = large()
    precision(model, FP8, ("down",), torch.device("cpu"))
    converted = [name for name, part in model.named_modules() if hasattr(part, "converted")]
    assert converted == ["up"]


@without_torchao
def test_a_model_for_which_fp8_does_not_pay_is_refused(torchao) -> None:
    with pytest.raises(PlanError) as caught:
        convert_linears(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), skip=())
    assert str(caught.value) == (
        "precision: fp8 pays for none of the 2 linears of Sequential (multiples of 16, "
        "at least 1024 × 1024 or as good). bf16 is as fast for it."
    )


class Doubled(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(inputs)


def test_a_linear_that_does_more_than_its_product_is_left_alone() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024), Doubled(1024, 1024), nn.Linear(1024, 1024))
    assert float8_linears(model) == {"0"}


def test_our_own_products_need_no_package_and_leave_classes_and_names() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 512), nn.Linear(512, 8))
    inputs, names = torch.randn(16, 1024), dict(model.named_parameters())
    precision(nn.Linear(2, 2), BF16, (), torch.device("cpu"))  # settles on kernels
    before = [model[0](inputs), model[1](inputs), model[2](inputs[:, :512])]
    precision(model, FP8, (), torch.device("cpu"), kernels=True)
    after = [model[0](inputs), model[1](inputs), model[2](inputs[:, :512])]
    assert all(type(part) is nn.Linear for part in model)
    assert all(model.get_parameter(name) is one for name, one in names.items())
    assert 0.001 < relative(after[0], before[0]) < 0.06
    assert torch.equal(after[1], before[1]), "1024 × 512 does not pay"
    assert torch.equal(after[2], before[2]), "the last makes the logits"


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((found - exact).norm() / exact.norm()).detach())
