"""A precision's name is read once; each party then reads its own field."""

import pytest

from stepladder.errors import PlanError
from stepladder.plan import PRECISIONS, Precision
from stepladder.plan.precision import BF16_PURE, BYTES


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_precision_reads_back_and_all_its_types_have_a_size(name):
    precision = Precision.parse(name)
    assert str(precision) == name
    assert {precision.store, precision.work, precision.reduce} <= BYTES.keys()


def test_which_precisions_keep_parameters_in_another_type():
    assert {name for name, p in PRECISIONS.items() if p.mixed} == {"fp16", "bf16", "fp8"}


def test_only_fp16_scales_its_loss():
    assert [name for name, p in PRECISIONS.items() if p.scaled] == ["fp16"]


def test_masters_are_beside_parameters_in_fewer_bits():
    kept = [p for p in PRECISIONS.values() if p.masters]
    assert [p.name for p in kept] == ["bf16-master", "fp8-master"]
    assert all(p.store == "bfloat16" and not p.mixed for p in kept)


def test_pure_bf16_stores_works_and_reduces_in_bf16():
    assert {BF16_PURE.store, BF16_PURE.work, BF16_PURE.reduce} == {"bfloat16"}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("bf-16", "Did you mean 'bf16'?"),
        ("double", f"Choose one of: {', '.join(PRECISIONS)}."),
    ],
)
def test_an_unknown_precision_names_the_nearest_or_all(name, remedy):
    with pytest.raises(PlanError) as caught:
        Precision.parse(name)
    assert str(caught.value) == f"precision: '{name}' is not a precision. {remedy}"
