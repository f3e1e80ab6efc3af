"""A run that is resumed goes on in a DataLoader where it was, as if it had never stopped."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from stepladder.train import climb, fit
from tests.ranks import run as on_ranks
from tests.train.toys import net, pairs

ROWS, SIZE, STEPS = 22, 4, 14  # six batches an epoch


def data():
    x, y = (torch.cat(parts) for parts in zip(*pairs(3)))
    return TensorDataset(x[:ROWS], y[:ROWS])


class Noisy(TensorDataset):
    """Draws in __getitem__, as an augmentation does."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(x.shape), y


class Stream(IterableDataset):
    def __iter__(self):
        return (data()[index] for index in range(ROWS))


class Keeping(IterableDataset):
    """A stream that knows its own position, and draws nothing."""

    def __init__(self):
        self.next, self.made = 0, 0

    def __iter__(self):
        while self.next < ROWS:
            self.next, self.made = self.next + 1, self.made + 1
            yield data()[self.next - 1]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def streaming():
    """A streaming dataset of Hugging Face, in an order that changes by the epoch."""
    import datasets

    x, y = data().tensors
    rows = datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()})
    return rows.to_iterable_dataset(num_shards=4).with_format("torch")


def pairs_of(rows):
    return torch.stack([r["x"] for r in rows]), torch.stack([r["y"] for r in rows])


class Stateful:
    """As torchdata's loader: it knows its own position."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        while self.next < ROWS // SIZE:
            self.next += 1
            yield data()[(self.next - 1) * SIZE : self.next * SIZE]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def loaders(kind):
    if kind == "own generator":
        draw = torch.Generator().manual_seed(7)
        return DataLoader(data(), batch_size=SIZE, shuffle=True, generator=draw)
    if kind == "noisy":
        return DataLoader(Noisy(*data().tensors), batch_size=SIZE, shuffle=True, drop_last=True)
    if kind == "distributed":
        return DataLoader(data(), batch_size=SIZE // 2, sampler=DistributedSampler(data()))
    if kind == "hugging face":
        return DataLoader(streaming(), batch_size=SIZE, collate_fn=pairs_of)
    if kind == "keeping":
        return DataLoader(Keeping(), batch_size=SIZE)
    made = {"stream": lambda: DataLoader(Stream(), batch_size=SIZE), "stateful": Stateful}
    return made.get(kind, lambda: DataLoader(data(), batch_size=SIZE, shuffle=True))()


def train(kind, plan, folder, save=None, load=None, before=3):
    """Losses and positions of every step until STEPS, epoch after epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(before)  # a resumed process begins with other generators
    loader = loaders(kind)
    run = climb(net(), loss="cross_entropy", optimizer="adam lr=0.05", plan=plan, device="cpu")
    if load:
        run.load(f"{folder}/{load}")
    found = {}
    while run.index < STEPS:
        if kind == "distributed" and not load:
            loader.sampler.set_epoch(run.index // 6)
        load = None
        for report in fit(run, loader, steps=STEPS):
            found[report.step] = report.loss, run.position
            if save and report.step + 1 in save:
                run.save(f"{folder}/{report.step + 1}")
    return found, run.events


def both(kind, plan, folder, steps):
    whole, _ = train(kind, plan, folder, save=steps)
    return whole, [train(kind, plan, folder, load=step, before=9) for step in steps]


def check(whole, resumed, step, exact=True):
    found, _ = resumed
    assert sorted(found) == list(range(step, STEPS))
    for index, (loss, position) in found.items():
        expected = whole[index][0] if exact else pytest.approx(whole[index][0], rel=1e-5)
        assert loss == expected and position == whole[index][1], index


@pytest.mark.parametrize("kind", ["shuffled", "own generator", "noisy", "stream", "stateful",
                                  "keeping", "hugging face"])  # fmt: skip
def test_a_resumed_run_reads_the_batches_that_were_left(kind, tmp_path):
    steps = [1, 5 if kind == "noisy" else 6, 8, 12]  # the second ends an epoch
    whole, resumed = both(kind, "fp32", tmp_path, steps)
    for step, one in zip(steps, resumed):
        check(whole, one, step)
    said = "the DataLoader reads a stream: 2 batches were read again from its start"
    assert (said in resumed[2][1]) == (kind == "stream")
    said = "the DataLoader's stream goes on from its own state, after 2 batches"
    assert (said in resumed[2][1]) == (kind in ("keeping", "hugging face"))


def test_a_stream_that_keeps_its_position_is_read_on_and_not_again(tmp_path):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    for report in fit(run, DataLoader(Keeping(), batch_size=SIZE), steps=3):
        report.read()
    run.save(tmp_path)
    loader = DataLoader(Keeping(), batch_size=SIZE)
    again = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    again.resume(tmp_path)
    next(iter(fit(again, loader)))
    assert loader.dataset.made == SIZE


@pytest.mark.parametrize("kind", ["shuffled", "stream", "keeping", "hugging face", "distributed"])
def test_ranks_go_on_in_a_loader_and_so_does_one_process(kind, tmp_path):
    ranks = on_ranks(both, 2, kind, "fp32 ddp", tmp_path, [3, 8])
    for whole, resumed in ranks:
        for step, one in zip([3, 8], resumed):
            check(whole, one, step)
    if kind != "distributed":
        alone = train(kind, "fp32", tmp_path, load=8, before=9)
        check(ranks[0][0], alone, 8, exact=False)


def test_a_checkpoint_of_a_run_that_read_no_loader_says_so(tmp_path):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    run.step(pairs(1)[0]).read()
    run.save(tmp_path)
    run.load(tmp_path)
    next(iter(fit(run, loaders("shuffled"))))
    said = "the checkpoint does not know where it was in a DataLoader: its first batch is next"
    assert said in run.events
