"""A recipe whose data is a stream: nothing lost or repeated after a stop, and said which kind."""

import pytest

from stepladder import job
from stepladder.data.streams.streamed_source import HELD_OUT, StreamedSource
from stepladder.errors import StepladderError
from stepladder.record import read_journal

MINE = """
import torch
from torch import nn


def sample(number):
    return torch.full((4,), number / 3000), number % 2


class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        return map(sample, range(3000))


class Kept:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 3000:
            self.at += 1
            yield sample(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def make():
    return nn.Linear(4, 2)


def lines():
    return Lines()


def kept():
    return Kept()


def once():
    return (sample(number) for number in range(3000))


def pair():
    return Lines(), [sample(number) for number in range(20)]


def short():
    return iter([sample(1), sample(2)])
"""


@pytest.fixture
def train(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)

    def run(data, folder, steps, resume=False):
        settings = [
            "--model.name", f"{tmp_path}/mine.py:make",
            "--data.source", f"{tmp_path}/mine.py:{data}", "--train.steps", str(steps),
            "--train.batch", "256", "--train.device", "cpu", "--train.report_every", "1",
            "--train.evaluate_batches", "1", "--optimizer.name", "sgd", "--optimizer.lr", "0.5",
            "--rate.kind", "constant", "--rate.warmup", "0",
            "--run.folder", str(tmp_path / folder), "--run.resume", str(resume).lower(),
        ]  # fmt: skip
        job.train(settings=settings, plan="fp32")
        entries = list(read_journal(tmp_path / folder))
        losses = {entry["step"]: entry["loss"] for entry in entries if entry["kind"] == "step"}
        return losses, " ".join(e["text"] for e in entries if e["kind"] == "event")

    return run


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("lines", "TrainingStream keeps no position"),
        ("kept", "goes on from its own state"),
        ("once", "generator keeps no position"),
        ("pair", "Lines keeps no position"),
    ],
)
def test_a_stopped_run_goes_on_with_the_next_sample(train, data, said):
    whole, _ = train(data, "whole", 7)
    train(data, "parts", 5)
    parts, events = train(data, "parts", 7, resume=True)
    assert parts == whole and sorted(whole) == list(range(7))
    assert said in events


def test_samples_that_validate_are_not_trained_on():
    source = StreamedSource(iter(range(1000)))
    assert list(source.first) == list(range(HELD_OUT)) and len(source) == HELD_OUT
    assert source[3] == 3 and list(source.stream) == list(range(HELD_OUT, 1000))


def test_a_stream_of_few_samples_is_refused(train):
    with pytest.raises(StepladderError) as refused:
        train("short", "short", 2)
    assert "the stream has 2 samples, and the first 256 validate" in str(refused.value)
    assert "Return two: a stream to train on, and samples to validate with." in str(refused.value)
