"""A pending report has every field of a report, waits only when one is read, and can be copied."""

import copy
import gc
import pickle
import weakref
from dataclasses import fields

import pytest
import torch

from stepladder.model import count_flops
from stepladder.record import Report
from stepladder.train import climb, flop_rate
from stepladder.train.pending_report import PendingReport
from stepladder.world import peak_memory_bytes
from stepladder.world.machine.process_memory import memory_bytes_in_use
from tests.ranks import run

from .toys import llama, ragged

KNOWN = Report(3, 2.5, 1.0, 0.1, 64, 0.5, 2**30, 128.0, mfu=0.4, rank_memory_bytes=2**29)


def pending(reads: list[int]) -> PendingReport:
    def resolve() -> Report:
        reads.append(1)
        return KNOWN

    return PendingReport(3, resolve)


def test_every_field_of_a_report_can_be_read():
    report = pending([])
    for field in fields(Report):
        assert getattr(report, field.name) == getattr(KNOWN, field.name)
    assert report.to_dict() == KNOWN.to_dict() and report.line() == KNOWN.line()


def test_the_step_is_known_without_waiting_and_the_numbers_are_read_once():
    reads: list[int] = []
    report = pending(reads)
    assert report.step == 3 and repr(report) == "PendingReport(step=3, not read yet)"
    assert reads == []
    assert (report.loss, report.lr) == (2.5, 0.1) and reads == [1]
    assert repr(report).startswith("PendingReport(step=3, loss=2.5")


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_a_copy_holds_the_same_numbers(copied):
    assert copied(pending([])).read() == KNOWN


def test_flops_are_counted_when_a_rate_is_asked_for_and_once_a_shape(monkeypatch):
    counted = []

    def count(*given):
        counted.append(given)
        return count_flops(*given)

    monkeypatch.setattr(flop_rate, "count_flops", count)
    taken = climb(llama(), loss="cross_entropy", plan="fp32", device="cpu")
    first, second = (taken.step(batch) for batch in ragged(1) * 2)
    assert (first.loss, first.seconds, second.tokens) and not counted
    assert first.flops_per_second == first.read().flops_per_second > 0
    assert "TFLOP/s" in second.line() and len(counted) == 1
    assert repr(first) == f"Pending{first.read()!r}"


def test_a_report_of_which_only_the_loss_was_read_keeps_no_batch():
    taken = climb(llama(), loss="cross_entropy", plan="fp32", device="cpu")
    batch = ragged(1)[0]
    held = weakref.ref(batch[0])
    report = taken.step(batch)
    assert report.loss > 0
    del batch
    gc.collect()
    assert held() is None and report.flops_per_second > 0


def test_a_name_that_is_no_field_is_refused():
    with pytest.raises(AttributeError, match="'PendingReport' object has no attribute 'losses'"):
        _ = pending([]).losses


def greedy() -> tuple[int, int]:
    """A step of two ranks of which the second needs more memory; read by the first one alone."""
    taken = climb(llama(), loss="cross_entropy", plan="fp32 ddp", device="cpu")
    peaks = taken.world.max(torch.tensor(peak_memory_bytes(taken.world.device)), "replicate")
    if taken.world.place.rank == 1:
        held = b"x" * (int(peaks) - memory_bytes_in_use(taken.world.device) + 2**27)
        taken.step(ragged(1)[0], rows="global")
        return len(held), peak_memory_bytes(taken.world.device)
    report = taken.step(ragged(1)[0], rows="global")
    return report.memory_bytes, report.rank_memory_bytes


def test_memory_is_of_the_fullest_rank_though_one_rank_alone_reads_it():
    (fullest, first), (_, second) = run(greedy, 2, init=False)
    assert first + 2**26 < fullest <= second
