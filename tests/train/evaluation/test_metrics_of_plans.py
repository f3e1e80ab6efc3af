"""Metrics and predictions of every kind of plan are those of a plain loop over the whole set."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from stepladder.model import build
from stepladder.train import climb
from tests.ranks import run
from tests.train.toys import ragged

SHAPE = "llama:layers=2,hidden=32,heads=2,vocab=64,sequence=16"
ROWS = (8, 8, 5)  # of each batch: the last is smaller and odd
PLANS = (
    "fp32 ddp",
    "fp32 ddp micro=2",
    "fp32 zero3 micro=3",
    "fp32 tensor=2",
    "fp32 pipeline=2 micro=1",
    "fp32 context=2",
)


def model(seed: int) -> nn.Module:
    """Weights that are all drawn, so that rows and tokens differ in their outputs."""
    made = build(SHAPE, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5
    return made


def batches(seed: int):
    made = ragged(len(ROWS), rows=max(ROWS), seed=seed)
    return [(x[:rows], y[:rows]) for (x, y), rows in zip(made, ROWS)]


def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets)[targets != -100].float().mean()


def macro_f1(outputs, targets):
    """Of eight classes; no mean over parts of a set."""
    found, wanted = outputs.argmax(-1)[targets != -100] % 8, targets[targets != -100] % 8
    scores = []
    for label in range(8):
        hits = ((found == label) & (wanted == label)).sum()
        scores.append(2 * hits / ((found == label).sum() + (wanted == label).sum()).clamp(min=1))
    return torch.stack(scores)


class Tally:
    """Rows, tokens and hits; with a process group it adds up ranks, as torchmetrics does."""

    def __init__(self, combines: bool) -> None:
        if combines:
            self.process_group = None
        self.reset()

    def reset(self) -> None:
        self.counts = torch.zeros(3)

    def update(self, outputs, targets) -> None:
        valid = targets != -100
        hits = (outputs.argmax(-1) == targets)[valid].sum()
        self.counts += torch.tensor([len(targets), valid.sum(), hits])

    def compute(self):
        counts = self.counts.clone()
        if hasattr(self, "process_group") and dist.is_initialized():
            dist.all_reduce(counts, group=self.process_group)
        return counts


def evaluated(plan: str, seed: int):
    taken = climb(model(seed), loss="cross_entropy", plan=plan, device="cpu")
    combining, plain = Tally(True), Tally(False)
    metrics = {"accuracy": accuracy, "f1": macro_f1, "own": combining, "plain": plain}
    found = taken.evaluate(batches(seed), metrics=metrics, rows="global")
    left = combining.process_group, combining.counts.sum(), plain.counts.sum()
    assert left == (None, 0, 0), "objects are as new"
    assert found.loss == taken.evaluate(batches(seed), rows="global")
    predicted = taken.predict(batches(seed), rows="global")
    return found.loss, found.metrics, predicted


def whole_set(seed: int):
    """A plain loop on one process: everything in one forward pass."""
    x, y = (torch.cat(parts) for parts in zip(*batches(seed)))
    module = model(seed).eval()
    with torch.no_grad():
        outputs = module(x)
    return outputs, y, nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten()).item()


def assert_same(found, seed: int) -> None:
    outputs, targets, loss = whole_set(seed)
    got, metrics, predicted = found
    assert got == pytest.approx(loss, rel=1e-5)
    assert torch.allclose(predicted, outputs, atol=1e-5)
    assert metrics["accuracy"] == pytest.approx(accuracy(outputs, targets).item(), rel=1e-6)
    assert torch.allclose(metrics["f1"], macro_f1(outputs, targets))
    valid = targets != -100
    hits = (outputs.argmax(-1) == targets)[valid].sum()
    counts = [float(len(targets)), float(valid.sum()), float(hits)]
    assert metrics["own"].tolist() == metrics["plain"].tolist() == counts


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=3"])
def test_one_rank_finds_what_a_plain_loop_does(plan):
    assert_same(evaluated(plan, 3), 3)


@pytest.mark.parametrize("plan", PLANS)
def test_every_rank_of_a_plan_finds_what_a_plain_loop_does(plan):
    seed = PLANS.index(plan)
    for found in run(evaluated, 2, plan, seed, init=False):
        assert_same(found, seed)
