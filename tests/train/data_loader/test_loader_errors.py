"""What a user's dataset raises under a DataLoader is one line: which sample, what, and where."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from stepladder.errors import DataError
from stepladder.train import climb, fit
from tests.ranks import run as on_ranks
from tests.train.toys import net


class Broken(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("no such picture")
        return torch.ones(16), index % 5


class BrokenStream(IterableDataset):
    def __iter__(self):
        yield from ((torch.ones(16), 0) for _ in range(4))
        raise KeyError("line")


class Uneven(Broken):
    def __getitem__(self, index):
        return torch.ones(16 + index), 0


def raised(loader, call="fit"):
    """The error of training on, or evaluating, a loader's batches."""
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(DataError) as refused:
        if call == "fit":
            list(fit(run, loader))
        else:
            getattr(run, call)(loader)
    return refused.value


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "profile"])
def test_a_sample_that_cannot_be_read_is_named(call):
    error = raised(DataLoader(Broken(), batch_size=4), call)
    said = str(error)
    assert said.startswith("sample 5 (Broken): cannot be read (ValueError: no such picture; test_")
    assert "on_error='skip'" in said and "\n" not in said
    assert isinstance(error.__cause__, ValueError)  # with the traceback


def test_the_dataset_inside_a_subset_is_named():
    inner = DataLoader(Subset(Broken(), [7, 5]), batch_size=1)
    assert str(raised(inner)).startswith("sample 5 (Broken): cannot be read")


def test_a_worker_process_names_the_dataset_and_the_line():
    said = str(raised(DataLoader(Broken(), batch_size=4, num_workers=1)))
    assert said.startswith("a sample of Broken: cannot be read (ValueError: no such picture; test_")


def test_a_stream_and_samples_that_do_not_stack_are_named():
    said = str(raised(DataLoader(BrokenStream(), batch_size=2)))
    assert said.startswith("a sample of BrokenStream: cannot be read (KeyError: 'line'; test_load")
    said = str(raised(DataLoader(Uneven(), batch_size=2)))
    assert said.startswith("Uneven: cannot make a batch of its samples (RuntimeError: stack expec")


class BrokenEverywhere(Broken):
    def __getitem__(self, index):
        raise ValueError("no such picture")


def on_rank():
    run = climb(net(), loss="cross_entropy", plan="fp32 ddp", device="cpu")
    with pytest.raises(DataError) as refused:
        list(fit(run, DataLoader(BrokenEverywhere(), batch_size=4)))
    return str(refused.value)


def test_each_rank_names_its_sample():
    for rank, said in enumerate(on_ranks(on_rank, 2)):
        assert said.startswith(f"sample {2 * rank} (BrokenEverywhere): cannot be read")
