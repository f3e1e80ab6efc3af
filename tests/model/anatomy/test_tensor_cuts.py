"""Where foreign blocks may be cut."""

import pytest
from torch import nn

from stepladder.model.anatomy.tensor_cuts import find_cuts


def block_of(**linears):
    block = nn.Module()
    for name, (inputs, outputs) in linears.items():
        setattr(block, name, nn.Linear(inputs, outputs))
    return block


def cuts_of(**linears):
    block = block_of(**linears)
    return find_cuts(block, block)


def test_names_tell_queries_from_the_output():
    cuts = cuts_of(q_proj=(8, 8), k_proj=(8, 4), v_proj=(8, 4), o_proj=(8, 8))
    assert list(cuts.values()) == ["column", "column", "column", "row"]


def test_shapes_tell_a_widening_from_what_undoes_it():
    assert cuts_of(first=(8, 32), second=(32, 8)) == {"first": "column", "second": "row"}


def test_a_gate_widens_too():
    cuts = cuts_of(a=(8, 32), b=(8, 32), c=(32, 8))
    assert cuts == {"a": "column", "b": "column", "c": "row"}


@pytest.mark.parametrize(
    "linears",
    [
        {"qkv": (8, 24), "proj": (8, 8)},  # columns are not heads
        {"fused_qkv": (8, 24), "out": (8, 8)},
        {"out_proj": (8, 8)},  # nothing feeds it
        {"fc1": (8, 32), "fc2": (16, 8)},  # does not fit
        {"a": (8, 8), "b": (8, 8)},  # could be anything
        {},
    ],
)
def test_what_is_not_surely_right_is_not_cut(linears):
    assert cuts_of(**linears) == {}


def test_a_pair_may_have_two_parents():
    """As in BERT, whose attention keeps its output linear in another module."""
    block = nn.Module()
    block.attention = block_of(query=(8, 8), key=(8, 8), value=(8, 8))
    block.output = block_of(dense=(8, 8))
    block.intermediate = block_of(dense=(8, 32))
    block.last = block_of(dense=(32, 8))
    assert find_cuts(block, block) == {
        "attention.query": "column",
        "attention.key": "column",
        "attention.value": "column",
        "output.dense": "row",
        "intermediate.dense": "column",
        "last.dense": "row",
    }


def test_heads_whose_three_lie_side_by_side_are_columns():
    cuts = cuts_of(query_key_value=(8, 24), dense=(8, 8))
    assert cuts == {"query_key_value": "column", "dense": "row"}


def test_each_parent_is_judged_alone():
    block = nn.Module()
    block.attention = block_of(qkv=(8, 24), proj=(8, 8))
    block.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    assert find_cuts(block, block) == {"mlp.0": "column", "mlp.2": "row"}


def test_torchs_own_encoder_layer_is_cut_in_its_mlp_only():
    layer = nn.TransformerEncoderLayer(8, 2, 32)
    assert find_cuts(layer, layer) == {"linear1": "column", "linear2": "row"}


class Normed(nn.Module):
    """Attention with norms of queries and keys, beside an MLP."""

    def __init__(self, width):
        super().__init__()
        self.attention, self.mlp = nn.Module(), nn.Module()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self.attention, name, nn.Linear(8, 8))
        self.attention.q_norm, self.attention.k_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mlp.up, self.mlp.down = nn.Linear(8, 16), nn.Linear(16, 8)


def test_heads_that_are_normalised_together_are_not_cut():
    mlp = {"mlp.up": "column", "mlp.down": "row"}
    together, apart = Normed(8), Normed(4)
    assert find_cuts(together, together) == mlp
    assert find_cuts(apart, apart).keys() == {
        *mlp, *(f"attention.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    }  # fmt: skip
