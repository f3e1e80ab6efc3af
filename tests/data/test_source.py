import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stepladder.data import Arrays, Source, batches
from stepladder.data.source import as_source
from stepladder.errors import DataError


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index)), index * index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class MeasuredStream(Stream):
    def __len__(self):
        return 3


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


def test_a_map_style_dataset_is_a_source_as_it_is():
    data = Squares()
    assert as_source(data) is data and isinstance(data, Source)
    with batches(data, size=10) as feed:
        batch = next(feed)
    assert (batch.inputs**2).long().tolist() == batch.targets.tolist()
    assert sorted(batch.targets.tolist()) == [n * n for n in range(10)]


@pytest.mark.parametrize("stream", [Stream(), MeasuredStream(), (n for n in range(3)), Unsized()])
def test_a_stream_is_refused_with_the_reason_and_the_way_out(stream):
    with pytest.raises(DataError) as refused:
        batches(stream, size=1)
    text = str(refused.value)
    assert text.startswith(f"source: {type(stream).__name__} has no length and index")
    assert "addressed by its position" in text and "list(...)" in text and "TokenFile" in text


def test_a_loader_belongs_to_fit_and_its_dataset_here():
    with pytest.raises(DataError, match="makes batches itself. Give it to sl.fit as it is, or its"):
        batches(DataLoader([1, 2]), size=1)


def test_a_path_a_dict_and_an_empty_list_are_refused():
    with pytest.raises(DataError, match=r"'corpus/' is a path, not samples. Open it: TokenFile"):
        as_source("corpus/")
    with pytest.raises(DataError, match=r"a dict has keys, not positions. Use Arrays\(x, y\)"):
        as_source({"x": 1})
    with pytest.raises(DataError, match=r"list is empty. Give at least one sample"):
        as_source([])


def test_arrays_give_the_same_rows_one_by_one_and_together():
    x, y = np.random.default_rng(0).normal(size=(6, 3)).astype("float32"), torch.arange(6)
    source = Arrays(x, y)
    together = source.fetch(np.array([4, 1]))
    for row, index in enumerate((4, 1)):
        assert torch.equal(together[0][row], source[index][0]) and source[index][1] == index
    assert together[1].tolist() == [4, 1] and len(source) == 6
    assert torch.equal(Arrays(x)[2], torch.from_numpy(x[2]))


def test_arrays_of_different_lengths_and_no_arrays_are_refused():
    with pytest.raises(DataError, match=r"the arrays have 3 and 4 rows. Cut them to 3 rows"):
        Arrays(np.zeros(3), np.zeros(4))
    with pytest.raises(DataError, match=r"no array was given. Call it as Arrays\(x, y\)"):
        Arrays()
