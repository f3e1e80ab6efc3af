"""How a module is called, and what packed documents mean to it."""

import torch

from stepladder.data import text_corpus
from stepladder.model import build
from stepladder.rungs import call
from stepladder.train import climb


def test_inputs_are_given_the_way_they_are_shaped():
    def module(*args, **kwargs):
        return args, kwargs

    x = torch.zeros(1)
    assert call(module, x) == ((x,), {})
    assert call(module, (x, x)) == ((x, x), {})
    assert call(module, {"a": x}) == ((), {"a": x})


def test_packed_text_trains_through_every_layer(tmp_path):
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text(f"document number {index} " * 9)
    source = text_corpus(tmp_path, length=32, packed=True)
    run = climb(
        build("llama:layers=2,hidden=32,heads=2,vocab=256,sequence=32"),
        loss="cross_entropy", optimizer="adamw lr=0.01", plan="fp32 micro=2",
    )  # fmt: skip
    with run.batches(source, size=4) as feed:
        reports = [run.step(next(feed)) for _ in range(8)]
    assert reports[-1].loss < reports[0].loss
    fewest = min(report.tokens for report in reports)
    assert fewest < 4 * 32, "a target across two documents does not count"
