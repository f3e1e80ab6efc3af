"""Proofs of a caller's own module: a verdict that can be read, printed and asked for more."""

import json

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.errors import ModelError, PlanError, WorldError
from stepladder.plan import Plan
from stepladder.verify import Sameness
from stepladder.verify.live_module import fit_rows, rows_of
from stepladder.verify.verdict import ParityVerdict

BATCH = (
    torch.randn(16, 4, generator=torch.Generator().manual_seed(0)),
    torch.randint(0, 2, (16,), generator=torch.Generator().manual_seed(1)),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x))))


class Unsteady(Net):
    """Computes something else where it is one of several ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong = torch.distributed.is_available() and torch.distributed.is_initialized()
        return super().forward(x) + (1.0 + self.first.bias.sum() if wrong else 0.0)


def test_a_live_module_is_proved_and_left_alone():
    model = Net()
    before = [parameter.clone() for parameter in model.parameters()]
    drawn = torch.get_rng_state()
    verdict = sl.verify.parity(
        model, ["fp32 zero3 shard=2", "fp32 accumulate=2"], BATCH,
        loss="cross_entropy", optimizer="sgd lr=0.1", steps=2,
    )  # fmt: skip
    assert verdict and verdict.same and verdict.reasons == () and verdict.locate() is None
    assert [row.ranks for row in verdict.rows] == [2, 1]
    assert json.loads(json.dumps(verdict.to_dict()))["same"] is True
    assert str(verdict).splitlines()[0] == "Net, 2 steps: same"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert torch.equal(drawn, torch.get_rng_state()) and model.drop.p == 0.5


def test_a_module_that_differs_is_located():
    verdict = sl.verify.parity(
        Unsteady, "fp32 ddp replicate=2", BATCH, optimizer="sgd lr=0.1", steps=2
    )
    assert not verdict.same  # refused: the module returns no loss, and none is given
    assert "no loss" in verdict.reasons[0] and verdict.locate() is None
    verdict = sl.verify.parity(
        Unsteady, "fp32 ddp replicate=2", BATCH, loss=first_output, optimizer="sgd lr=0.1", steps=2
    )
    assert not verdict and verdict.worst is verdict.rows[0]
    found = verdict.locate()
    assert found is not None and (found.step, found.kind, found.module) == (0, "output", "")
    assert (found.micro_batch, found.rank, found.inputs) == (0, 0, "the same bits")
    said = " ".join(str(found).split())
    assert "step 0, micro-batch 0, rank 0: output of the module is the first" in said
    assert max(map(len, str(found).splitlines())) <= 80


class Centred(nn.Module):
    """Statistics of a batch, written by hand and read at once: no plan can cut such a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.inner(x - self.mean)


def test_statistics_that_a_cut_changes_are_found():
    verdict = sl.verify.parity(
        Centred, ["fp32 batch=16 micro=16", "fp32 accumulate=2"], BATCH, loss="cross_entropy",
        optimizer="sgd lr=0.1", steps=2,
    )  # fmt: skip
    whole, cut = verdict.rows
    assert (whole.verdict, whole.buffers < 1e-6) == ("same", True)
    # What it keeps is a mean over rows, and so that of the whole batch; what it computes is not.
    assert (cut.verdict, cut.worst, cut.buffers < 1e-6) == ("DIFFERENT", "inner.weight", True)


def test_batch_norm_is_the_same_on_two_ranks_and_another_in_micro_batches():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    verdict = sl.verify.parity(
        net, ["fp32 ddp replicate=2", "fp32 accumulate=2"], BATCH, loss="cross_entropy",
        optimizer="sgd lr=0.1", steps=2,
    )  # fmt: skip
    ranks, cut = verdict.rows
    assert ranks.verdict == "same" and ranks.buffers < 1e-4
    assert cut.verdict == "DIFFERENT" and "BatchNorm sees one micro-batch at a time" in cut.reason


def test_a_module_that_plain_torch_cannot_run_is_reported_in_our_words():
    verdict = sl.verify.parity(Net(), "fp32", BATCH, steps=1, optimizer="sgd lr=0.1")
    assert verdict.rows[0].verdict == "refused" and "no loss" in verdict.reasons[0]


def first_output(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs[:, 0].square().mean()


def test_the_worst_row_is_the_one_furthest_over_what_is_allowed():
    fine = Sameness("a", "sgd", 1, loss=1e-6, norm=0, parameters=0, tolerance=1e-5)
    bad = Sameness("b", "sgd", 2, loss=1e-3, norm=0, parameters=0, tolerance=1e-5, worst="w")
    verdict = ParityVerdict("net", 2, (fine, bad))
    assert verdict.worst is bad and verdict.reasons == ("b (sgd): furthest is w",)
    assert str(verdict).splitlines()[0] == "net, 2 steps: 1 not the same"


def test_precisions_are_compared_on_rows_that_were_not_trained_on():
    verdict = sl.verify.precision(
        nn.Linear(4, 2), BATCH, loss="cross_entropy", other=["bf16", "fp32"], steps=3, device="cpu"
    )
    assert verdict.same and [str(row.other) for row in verdict.rows] == ["bf16", "fp32"]
    assert verdict.rows[1].verdict.difference == 0.0 and "reference" in str(verdict)


def test_a_run_of_a_live_module_is_killed_and_resumed():
    verdict = sl.verify.resume(Net(), "fp32", BATCH, loss="cross_entropy")
    assert verdict.same and verdict.rows[0].verdict == "same bits" and verdict.rows[0].killed_in


def test_a_batch_is_split_so_that_every_rank_accumulates():
    plans = [Plan.parse("fp32 zero3 shard=2"), Plan.parse("fp32 ddp micro=3")]
    fitted, own = fit_rows(plans, 16)
    assert (fitted.batch.sequences, fitted.batch.micro) == (16, 4) and own is plans[1]
    (piped,) = fit_rows([Plan.parse("fp32 pipeline=2")], 16)
    assert (piped.batch.sequences, piped.batch.micro) == (16, 4)


def test_rows_of_a_dict_are_samples():
    rows = rows_of({"x": torch.arange(3), "labels": torch.arange(3)})
    assert len(rows) == 3 and rows[1]["x"].item() == 1


def test_what_cannot_be_proved_is_refused_in_a_line(monkeypatch):
    with pytest.raises(ModelError) as raised:
        sl.verify.parity(Net(), "fp32", loss="cross_entropy")
    problem = "a module of your own is proved on a batch and none was given"
    assert str(raised.value) == f"batch: {problem}. Pass batch=."
    with pytest.raises(PlanError, match="steps: 0 is not a number of steps"):
        sl.verify.parity(Net(), "fp32", BATCH, steps=0)
    with pytest.raises(PlanError, match="optimizer: an empty list names none. Give one text"):
        sl.verify.parity(Net(), "fp32", BATCH, optimizer=[])
    for name in ("RANK", "LOCAL_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(WorldError, match="starts ranks of its own, and this process is rank 0"):
        sl.verify.parity(Net(), "fp32", BATCH)
