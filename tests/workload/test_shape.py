"""A shape is text, and its counts are those of the model it describes."""

import time
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.workload import Shape
from stepladder.workload.shape import divisors, parse_shape

numbers = st.integers(1, 10**6)


@st.composite
def shapes(draw):
    kv_heads, sharing, width = (draw(st.integers(1, 16)) for _ in range(3))
    heads = kv_heads * sharing
    layers, ffn, vocab, sequence = (draw(numbers) for _ in range(4))
    family, tied = draw(st.sampled_from(["gpt", "llama"])), draw(st.booleans())
    return Shape(family, layers, heads * width, heads, kv_heads, ffn, vocab, sequence, tied)


@st.composite
def mixtures(draw):
    layers, experts = draw(st.integers(1, 12)), draw(st.integers(1, 64))
    dense, every = draw(st.integers(0, layers - 1)), draw(st.integers(0, layers))
    assume(not every or layers // every > dense // every)
    widths = [draw(st.integers(0, 512)) for _ in range(3)]
    mixture = (experts, draw(st.integers(1, experts)), *widths[:2], dense, every, widths[2])
    return Shape("llama", layers, 64, 4, 2, 96, 128, 64, False, 0, *mixture)


@given(st.one_of(shapes(), mixtures()))
def test_a_shape_reads_back(shape):
    assert parse_shape(str(shape)) == shape


@given(mixtures())
def test_layers_with_experts_are_counted_as_they_are_placed(shape):
    placed = [layer for layer in range(shape.layers) if shape.is_sparse(layer)]
    assert shape.sparse_layers == len(placed) > 0
    assert placed[0] >= shape.dense
    mixture = 64 * shape.experts + 3 * 64 * shape.shared_ffn
    mixture += shape.experts * 3 * 64 * (shape.expert_ffn or 96)
    plain = replace(shape, experts=0).parameters
    assert shape.parameters == plain + len(placed) * (mixture - 3 * 64 * 96)


def test_a_shape_reads_as_people_write_it():
    text = "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"
    assert parse_shape(text) == Shape("llama", 32, 4096, 32, 8, 14336, 128256)


def test_what_is_left_out_follows_from_the_rest():
    shape = parse_shape("gpt:hidden=96, heads=6")
    assert (shape.kv_heads, shape.ffn, shape.tied) == (6, 384, True)
    assert parse_shape("llama:").tied is False


@given(shapes())
def test_the_parameters_are_the_sum_of_the_parts(shape):
    matrices = 3 if shape.family == "llama" else 2
    kv = shape.kv_heads * shape.head_width
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * kv
    mlp, norm = matrices * shape.hidden * shape.ffn, shape.hidden
    positions = 0
    if shape.family == "gpt":
        attention += 2 * shape.hidden + 2 * kv
        mlp += shape.ffn + shape.hidden
        norm *= 2
        positions = shape.sequence * shape.hidden
    table = shape.vocab * shape.hidden
    blocks = shape.layers * (attention + mlp + 2 * norm)
    head = 0 if shape.tied else table
    assert shape.parameters == table + positions + blocks + norm + head


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lama:layers=2", "model: 'lama' is not a family. Did you mean 'llama'?"),
        ("bert", "model: 'bert' is not a family. Choose one of: llama, gpt."),
        ("gpt:layer=2", "model: 'layer' is not part of a shape. Did you mean 'layers'?"),
        ("gpt:family=2", "model: 'family' is not part of a shape."),
        ("gpt:layers=0", "model.layers: '0' is not a whole number from 1 to 999999999. Write one."),
        ("gpt:layers=", "model.layers: '' is not a whole number from 1 to 999999999. Write one."),
        ("gpt:layers=²", "model.layers: '²' is not a whole number from 1 to 999999999. Write one."),
        ("gpt:layers=١", "model.layers: '١' is not a whole number from 1 to 999999999."),
        ("gpt:layers=-1", "model.layers: '-1' is not a whole number from 1 to 999999999."),
        ("gpt:layers=" + "9" * 5000, "model.layers: '999"),
        ("gpt:layers=2,layers=3", "model.layers: given twice, as 2 and 3. Keep one."),
        ("gpt:tied=2", "model.tied: '2' is neither 0 nor 1. Write tied=1 or tied=0."),
        (
            "gpt:hidden=96,heads=7",
            "model.heads: 7 heads do not divide hidden=96. Nearest that do: 6.",
        ),
        (
            "gpt:hidden=96,heads=8,kv_heads=3",
            "model.kv_heads: 3 does not divide 8 heads. Use a divisor of 8.",
        ),
        (
            "llama:experts=8,active=9",
            "model.active: a token cannot go to 9 of 8 experts. Use 1 to 8.",
        ),
        (
            "llama:experts=8",
            "model.active: 8 experts, and not to how many of them a token goes. Write active=2.",
        ),
        ("llama:experts=0,active=1", "model.experts: '0' is not a whole number from 1 to"),
        (
            "gpt:experts=8,active=2",
            "model.experts: 8 experts in a gpt, whose MLP has no gate as theirs do. "
            "Write the model as a llama.",
        ),
        (
            "llama:shared_ffn=64",
            "model.shared_ffn: 64 says nothing of a model without experts. "
            "Write experts=8 too, or leave it out.",
        ),
        (
            "llama:layers=999999999,experts=8,active=2",
            "model.layers: 999999999 layers, which a mixture has in an order that is gone through. "
            "Use at most 10000.",
        ),
        (
            "llama:layers=4,experts=8,active=2,dense=4",
            "model.dense: 4 leaves none of 4 layers for experts. Use a smaller number.",
        ),
        (
            "llama:layers=4,experts=8,active=2,every=5",
            "model.every: 5 leaves none of 4 layers for experts. Use a smaller number.",
        ),
    ],
)
def test_a_mistake_is_named(text, message):
    with pytest.raises(PlanError) as caught:
        parse_shape(text)
    assert str(caught.value).startswith(message)


def test_a_huge_width_is_answered_at_once():
    began = time.process_time()
    with pytest.raises(PlanError, match="Nearest that do: 9"):
        parse_shape("gpt:hidden=999999999,heads=7")
    assert time.process_time() - began < 1


@given(st.integers(1, 3000))
def test_divisors_are_all_there_are(number):
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
