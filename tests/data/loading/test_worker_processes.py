import numpy as np
import pytest
import torch

from stepladder.data import TokenFile, batches
from stepladder.errors import DataError


def test_processes_give_the_batches_threads_give_and_do_not_touch_the_generator(tmp_path):
    np.arange(2000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    source = TokenFile(tmp_path / "a.bin", 7, vocabulary=2000)
    with batches(source, size=4, seed=3, workers=0) as feed:
        plain = [next(feed) for _ in range(6)]
    torch.manual_seed(0)
    before, others = torch.get_rng_state(), {*torch.multiprocessing.active_children()}
    with batches(source, size=4, seed=3, workers="2 processes") as feed:
        for batch in plain:
            other = next(feed)
            assert torch.equal(batch.inputs, other.inputs) and torch.equal(
                batch.targets, other.targets
            )
            assert batch.position == other.position
    assert torch.equal(torch.get_rng_state(), before)
    ended = {*torch.multiprocessing.active_children()} - others
    for process in ended:  # the loader ends those that take their time, and does not wait for it
        process.join(60)
    assert not [process for process in ended if process.is_alive()], "they end with their feed"


def test_an_error_keeps_its_words_between_processes(tmp_path):
    tokens = np.zeros(1 << 20, np.uint16)
    tokens[900_000] = 700
    tokens.tofile(tmp_path / "a.bin")
    source = TokenFile(tmp_path / "a.bin", 8, vocabulary=500)
    start = 900_000 // 8
    with (
        batches(source, size=2, start=start, shuffle=False, workers="1 processes") as feed,
        pytest.raises(
            DataError, match=r"vocabulary: .* holds token 700 and the vocabulary ends at 499"
        ),
    ):
        next(feed)


def test_what_cannot_be_sent_to_a_process_is_refused_with_the_way_out():
    with pytest.raises(
        DataError, match=r"workers: the source or its share cannot be sent .* use threads"
    ):
        batches([1, 2], size=1, share=lambda step, size: np.arange(size), workers="1 processes")
