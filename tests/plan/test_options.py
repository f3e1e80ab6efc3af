"""Each small choice reads back from its own word, and refuses others with the words there are."""

import pytest
from hypothesis import given

from stepladder.errors import PlanError
from stepladder.plan import Recompute, Schedule
from stepladder.plan.options import (
    GIB,
    Compress,
    Exact,
    format_bytes,
    parse_bytes,
    parse_count,
    parse_prefetch,
    parse_recheck,
)

from . import strategies as some


@given(some.recomputes)
def test_recompute_reads_back(choice):
    assert Recompute.parse(str(choice)) == choice


@given(some.compressions)
def test_compress_reads_back(choice):
    assert Compress.parse(str(choice)) == choice


@given(some.schedules)
def test_schedule_reads_back(choice):
    assert Schedule.parse(str(choice)) == choice


@pytest.mark.parametrize(
    ("text", "slices"), [("none", 0), ("runs", 0), ("ranks", 8), ("ranks:16", 16)]
)
def test_exact_reads_back_with_its_slices(text, slices):
    assert Exact.parse(text).slices == slices
    assert Exact.parse(str(Exact.parse(text))) == Exact.parse(text)


def test_prefetch_is_a_number_of_blocks_or_none_of_them():
    assert [parse_prefetch(text) for text in ("0", "1", "12")] == [0, 1, 12]
    with pytest.raises(PlanError) as refused:
        parse_prefetch("-1")
    assert str(refused.value) == (
        "prefetch: '-1' is not a whole number of 0 or more. Write a number."
    )


def test_recheck_is_a_number_of_steps_or_none():
    assert [parse_recheck(text) for text in ("none", "0", "1000")] == [0, 0, 1000]
    with pytest.raises(PlanError) as caught:
        parse_recheck("often")
    assert str(caught.value) == (
        "recheck: 'often' is not a whole number of 1 or more. Write a number."
    )


@given(some.sizes)
def test_any_number_of_bytes_reads_back_to_the_byte(size):
    assert parse_bytes("memory", format_bytes(size)) == size


def test_sizes_read_as_people_write_them():
    assert parse_bytes("memory", "12GiB") == 12 * GIB
    assert parse_bytes("memory", "0.5GiB") == GIB // 2
    assert format_bytes(10 * GIB) == "10GiB"


@pytest.mark.parametrize(
    "text",
    ["12", "GiB", "12GB", "-1GiB", "0GiB", "1e-300GiB", "nanGiB", "infGiB", "1e9GiB", "١GiB"],
)
def test_what_is_not_a_size_says_how_to_write_one(text):
    with pytest.raises(PlanError) as caught:
        parse_bytes("memory", text)
    assert str(caught.value) == (f"memory: '{text}' is not a size. Write it in GiB, such as 12GiB.")


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "", "x", "١٢", "²", "9" * 20, "9" * 5000])
def test_what_is_not_a_count_is_refused(text):
    with pytest.raises(PlanError) as caught:
        parse_count("batch.micro", text)
    assert str(caught.value) == (
        f"batch.micro: '{text}' is not a whole number of 1 or more. Write a number."
    )


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            Recompute,
            "all",
            "recompute: 'all' is not a way to recompute. "
            "Choose none, blocks, selective, every:2 or a budget such as 8GiB.",
        ),
        (
            Recompute,
            "every:0",
            "recompute: '0' is not a whole number of 1 or more. Write a number.",
        ),
        (Recompute, "xGiB", "recompute: 'xGiB' is not a size. Write it in GiB, such as 12GiB."),
        (Exact, "bits", "exact: 'bits' is not a kind. Choose none, free, runs, ranks or ranks:16."),
        (
            Exact,
            "ranks:12",
            "exact: 12 slices make no binary tree. Use a power of two: 8 or 16.",
        ),
        (
            Compress,
            "zip",
            "compress: 'zip' is not a compression. Choose none, bf16, fp16 or powersgd:4.",
        ),
        (Compress, "powersgd:", "compress: '' is not a whole number of 1 or more. Write a number."),
        (
            Schedule,
            "2f2b",
            "schedule: '2f2b' is not a pipeline schedule. "
            "Choose gpipe, 1f1b, interleaved:2 or zero-bubble.",
        ),
        (
            Schedule,
            "interleaved:x",
            "schedule: 'x' is not a whole number of 1 or more. Write a number.",
        ),
    ],
)
def test_a_wrong_word_names_the_right_ones(kind, text, message):
    with pytest.raises(PlanError) as caught:
        kind.parse(text)
    assert str(caught.value) == message


def test_zero_bubble_holds_two_stages_a_rank():
    assert Schedule.parse("zero-bubble").virtual == 2
