import numpy as np
import pytest
import torch

from stepladder.data import ReadPolicy, SampleOrder, load_batch
from stepladder.data.loading.read_samples import MAX_SUBSTITUTES, SampleReader
from stepladder.errors import DataError

HICCUP = OSError("disk hiccup")
QUICK = ReadPolicy(pause_seconds=0)


class Flaky:
    """Fails the first times each sample is read."""

    def __init__(self, failures, error=HICCUP):
        self.failures, self.error, self.reads = failures, error, 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.reads += 1
        if index == 3 and self.reads <= self.failures:
            raise self.error
        return index

    def where(self, index):
        return f"shard/{index}.bin"


def test_a_read_that_fails_for_a_moment_is_tried_again():
    assert SampleReader(Flaky(2), QUICK).read(3) == (3, None)


def test_a_read_that_keeps_failing_names_its_file_and_keeps_its_cause():
    source = Flaky(99)
    with pytest.raises(DataError) as failed:
        SampleReader(source, QUICK).read(3)
    assert str(failed.value) == (
        "sample 3 (shard/3.bin): cannot be read (OSError: disk hiccup). "
        "Mend or remove it, or go on without it: on_error='skip', data.faults in a recipe."
    )
    assert isinstance(failed.value.__cause__, OSError) and source.reads == 3


def test_a_mistake_in_the_source_is_not_tried_again():
    source = Flaky(99, ZeroDivisionError("n"))
    with pytest.raises(DataError, match=r"sample 3 .*ZeroDivisionError: n"):
        SampleReader(source, QUICK).read(3)
    assert source.reads == 1


def test_a_skipped_sample_is_replaced_by_its_neighbour_and_reported():
    policy = ReadPolicy(on_error="skip", pause_seconds=0)
    batch = load_batch(
        Flaky(10**9), SampleOrder(40, shuffle=False), np.arange(2, 6), reading=policy
    )
    assert batch.inputs.tolist() == [2, 4, 4, 5]
    assert len(batch.skipped) == 1 and "shard/3.bin" in batch.skipped[0]
    assert batch.skipped[0].endswith("Sample 4 stands in.")


def test_of_several_failures_in_a_row_the_sample_asked_for_is_named():
    class Gap(Flaky):
        def __getitem__(self, index):
            if index in (3, 4):
                raise OSError("gone")
            return index

    sample, sentence = SampleReader(Gap(0), ReadPolicy(on_error="skip", retries=0)).read(3)
    assert sample == 5 and "shard/3.bin" in sentence and sentence.endswith("Sample 5 stands in.")


def test_a_source_where_nothing_can_be_read_is_not_skipped_through():
    class Dead(Flaky):
        def __getitem__(self, index):
            raise OSError("gone")

    with pytest.raises(
        DataError, match=rf"gone.; so are the {MAX_SUBSTITUTES} samples after it. Too many"
    ):
        SampleReader(Dead(0), ReadPolicy(on_error="skip", retries=0)).read(39)


def test_a_fetch_that_fails_is_read_sample_by_sample():
    class Fetching(Flaky):
        def fetch(self, indices):
            raise self.error

    order = SampleOrder(40, shuffle=False)
    assert load_batch(Fetching(0), order, np.arange(4), reading=QUICK).inputs.tolist() == [
        0,
        1,
        2,
        3,
    ]
    with pytest.raises(DataError, match=r"sample 7 \(shard/7.bin\): cannot be read \(KeyError"):
        load_batch(Fetching(0, KeyError("x")), order, np.arange(7, 9), reading=QUICK)
    refusal = DataError("vocabulary", "too small")
    with pytest.raises(DataError, match=r"vocabulary: too small"):
        load_batch(Fetching(0, refusal), order, np.arange(4), reading=QUICK)
    skip = ReadPolicy(on_error="skip")
    assert load_batch(Fetching(0, refusal), order, np.arange(4), reading=skip).num_rows == 4


def test_a_refusal_by_the_source_passes_as_it_is():
    with pytest.raises(DataError, match=r"^own words: kept[.]$"):
        SampleReader(Flaky(99, DataError("own words", "kept", "")), QUICK).read(3)


def test_a_source_without_file_names_is_named_by_its_type():
    with pytest.raises(DataError, match=r"sample 9 \(list\): cannot be read \(IndexError"):
        SampleReader([torch.zeros(1)], QUICK).read(9)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ({"on_error": "skp"}, r"reading\.on_error: 'skp' is not a policy. Did you mean 'skip'"),
        (
            {"too_long": "chop"},
            r"reading\.too_long: 'chop' is not a policy. Choose one of: stop, cut",
        ),
        ({"longest": 0}, "longest: 0 is not a number of tokens"),
        ({"retries": -1}, r"reading\.retries: -1 is not a count. Use 0 for none"),
    ],
)
def test_a_wrong_policy_is_refused(policy, problem):
    with pytest.raises(DataError, match=problem):
        ReadPolicy(**policy)
