"""Data files that are cut, removed or unreadable under a run: retried, then skipped or refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from stepladder.data import ReadPolicy, TokenFile, batches
from stepladder.data.images.image_folder import ImageFolder
from stepladder.errors import DataError
from stepladder.train import climb

SKIP = ReadPolicy(on_error="skip", pause_seconds=0)


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("retry:2 then stop", ReadPolicy()),
        ("retry:5 then skip", ReadPolicy(on_error="skip", retries=5)),
        ("stop", ReadPolicy(retries=0)),
        ("skip", ReadPolicy(on_error="skip", retries=0)),
    ],
)
def test_a_recipe_says_what_is_done(text, policy):
    assert ReadPolicy.parse(text) == policy


@pytest.mark.parametrize("text", ["", "ignore", "retry:x then stop", "retry:2", "retry:2 then"])
def test_a_policy_nobody_knows_is_refused(text):
    with pytest.raises(DataError, match="data.faults: '.*' is not a policy. Write 'retry:3 then"):
        ReadPolicy.parse(text)


def tokens(folder, count=1000):
    path = folder / "tokens.bin"
    np.arange(count, dtype=np.uint16).tofile(path)
    return path


def test_a_token_file_cut_under_the_run_is_named_and_kills_nobody(tmp_path):
    path = tokens(tmp_path)
    source = TokenFile(path, length=10)
    with batches(source, size=4, shuffle=False) as feed:
        next(feed)
        with path.open("r+b") as file:
            file.truncate(100)
        with pytest.raises(DataError) as raised:
            for _ in range(20):
                next(feed)
    said = f"token file: '{path}' has 100 bytes and had 2000 when it was opened."
    assert str(raised.value).startswith(said)


def test_a_token_file_removed_under_the_run_is_read_to_the_end(tmp_path):
    path = tokens(tmp_path)
    source = TokenFile(path, length=10)
    path.unlink()
    assert source[98][0].tolist() == list(range(980, 990))


def pictures(folder, count=12):
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    return ImageFolder(folder)


def harm(folder, how: str):
    victim = folder / "a" / "04.png"
    data = victim.read_bytes()
    victim.unlink()
    if how == "folder":
        victim.mkdir()
    elif how == "truncated":
        victim.write_bytes(data[: len(data) // 2])
    return victim


@pytest.mark.parametrize("how", ["removed", "folder", "truncated"])
def test_a_picture_that_cannot_be_read_is_named_and_the_same_one_stands_in_on_any_ranks(
    tmp_path, how
):
    source = pictures(tmp_path)
    victim = harm(tmp_path, how)
    with batches(source, size=4, seed=1, reading=SKIP, stop=12) as feed:
        whole = list(feed)
    said = [sentence for batch in whole for sentence in batch.skipped]
    assert len(said) == 1 and str(victim) in said[0] and "stands in" in said[0]
    halves = []
    for rank in (0, 1):
        share = lambda step, size, rank=rank: np.arange(rank, size, 2)  # noqa: E731
        with batches(source, size=4, seed=1, reading=SKIP, stop=12, share=share) as feed:
            halves.append(list(feed))
    for batch, even, odd in zip(whole, *halves):
        assert torch.equal(batch.inputs[0::2], even.inputs)
        assert torch.equal(batch.inputs[1::2], odd.inputs)
    with batches(source, size=4, seed=1, stop=12) as feed, pytest.raises(DataError) as raised:
        list(feed)
    assert str(victim) in str(raised.value)


class Flaky(list):
    """Samples of which one is on a disk that fails."""

    def __getitem__(self, index):
        if index == 2:
            raise OSError(5, "Input/output error")
        return super().__getitem__(index)


def test_a_skipped_sample_is_an_event_of_the_run():
    samples = Flaky((torch.randn(3), torch.tensor(0)) for _ in range(8))
    run = climb(torch.nn.Linear(3, 2), loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    with run.batches(samples, size=8, reading=SKIP) as feed:
        run.step(next(feed)).read()
    (said,) = run.events
    assert said.startswith("step 0: sample 2 (Flaky): cannot be read") and "stands in" in said
