"""Which operation runs in which type."""

import pytest
import torch

from stepladder.model import build
from stepladder.model.tracing.precision_table import precision_table
from stepladder.plan import BF16, FP32
from stepladder.plan.precision import BF16_PURE, FP16

torch.set_num_threads(1)


def types_of(precision, name="gpt-tiny", inputs=None):
    inputs = torch.zeros(2, 8, dtype=torch.long) if inputs is None else inputs
    rows = precision_table(build(name, device="meta"), inputs, precision)
    return {(row.name, row.module): (row.runs_in, row.count) for row in rows}


@pytest.mark.parametrize(("precision", "work"), [(BF16, "bfloat16"), (FP16, "float16")])
def test_autocast_multiplies_in_few_bits_and_norms_in_many(precision, work):
    types = types_of(precision)
    assert types["addmm", "blocks.*.mlp.up"] == (work, 4)
    assert types["mm", "head"] == (work, 1)
    assert types["native_layer_norm", "blocks.*.mlp_norm"] == ("float32", 4)
    assert types["add", "blocks.*"] == ("float32", 8)
    assert types["cast", "blocks.*.mlp.up"][0] == work


def test_full_precision_casts_nothing():
    types = types_of(FP32)
    assert {runs_in for runs_in, _ in types.values()} == {"float32"}
    assert not [name for name, _ in types if name == "cast"]


def test_pure_bfloat16_leaves_nothing_wide():
    assert {runs_in for runs_in, _ in types_of(BF16_PURE).values()} == {"bfloat16"}


def test_batch_norms_statistics_stay_wide():
    types = types_of(BF16, "resnet-tiny", torch.zeros(2, 1, 8, 8))
    assert types["convolution", "stem.*"] == ("bfloat16", 1)
    assert types["native_batch_norm", "stem.*"] == ("float32", 1)


def test_what_only_moves_numbers_is_not_listed():
    names = {name for name, _ in types_of(BF16)}
    assert not names & {"view", "transpose", "unsafe_view", "clone", "prim.device"}
