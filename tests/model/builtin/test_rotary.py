"""Rotary positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import ModelError
from stepladder.model.builtin.rotary import Rotary

torch.set_num_threads(1)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 20))
def test_a_score_depends_on_the_distance_only(query_at, key_at, shift):
    rotary = Rotary(8, 64, theta=100.0)
    query, key = torch.linspace(-1, 1, 8).view(1, 1, 1, 8), torch.linspace(2, 0, 8).view(1, 1, 1, 8)

    def score(first, second):
        turned = rotary(query, torch.tensor([first])) * rotary(key, torch.tensor([second]))
        return turned.sum()

    near, far = score(query_at, key_at), score(query_at + shift, key_at + shift)
    torch.testing.assert_close(near, far, rtol=0, atol=1e-5)


def test_turning_keeps_the_length():
    heads = torch.randn(2, 3, 16, 8)
    torch.testing.assert_close(Rotary(8, 16, theta=1e4)(heads).norm(dim=-1), heads.norm(dim=-1))


def test_positions_count_up_unless_given():
    rotary, heads = Rotary(8, 16, theta=1e4), torch.randn(2, 3, 6, 8)
    counted = rotary(heads)
    torch.testing.assert_close(rotary(heads, torch.arange(6)), counted)
    torch.testing.assert_close(rotary(heads, torch.arange(6).expand(2, 6)), counted)
    assert not torch.allclose(rotary(heads, torch.arange(6) + 3), counted)


def test_the_pairs_are_half_a_width_apart():
    rotary = Rotary(4, 8, theta=1.0)
    turned = rotary(torch.tensor([1.0, 0, 0, 0]).view(1, 1, 1, 4), torch.tensor([1]))
    angle = torch.tensor(1.0)
    expected = torch.stack([angle.cos(), torch.tensor(0.0), angle.sin(), torch.tensor(0.0)])
    torch.testing.assert_close(turned.flatten(), expected)


def test_casting_the_model_leaves_the_table_in_float32():
    rotary = Rotary(8, 16, theta=1e4)
    exact = rotary.cos.clone()
    rotary.bfloat16()
    assert rotary.cos.dtype == rotary.sin.dtype == torch.float32
    torch.testing.assert_close(rotary.cos, exact, rtol=0, atol=0)
    assert rotary(torch.randn(1, 1, 4, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_table_is_computed_again_after_an_empty_move():
    with torch.device("meta"):
        rotary = Rotary(8, 16, theta=1e4)
    rotary.to_empty(device="cpu")
    rotary.reset_buffers()
    torch.testing.assert_close(rotary.sin, Rotary(8, 16, theta=1e4).sin)
    assert not rotary.state_dict()


def test_a_sequence_longer_than_the_table_is_refused():
    with pytest.raises(ModelError) as caught:
        Rotary(8, 16, theta=1e4)(torch.zeros(1, 1, 17, 8))
    assert str(caught.value) == (
        "sequence: 17 tokens are longer than the 16 positions this model was built with. "
        "Build it with sequence=17."
    )
