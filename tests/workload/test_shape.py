"""A shape is text, and its counts are those of the model it describes."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import PlanError
from stepladder.workload import Shape, parse_shape
from stepladder.workload.shape import divisors

numbers = st.integers(1, 10**6)


@st.composite
def shapes(draw):
    kv_heads, sharing, width = (draw(st.integers(1, 16)) for _ in range(3))
    heads = kv_heads * sharing
    layers, ffn, vocab, sequence = (draw(numbers) for _ in range(4))
    family, tied = draw(st.sampled_from(["gpt", "llama"])), draw(st.booleans())
    return Shape(family, layers, heads * width, heads, kv_heads, ffn, vocab, sequence, tied)


@given(shapes())
def test_a_shape_reads_back(shape):
    assert parse_shape(str(shape)) == shape


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
