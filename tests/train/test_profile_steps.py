"""A run profiles itself: its causes add up to the clock, and planted faults are named."""

import gzip
import json
import time
from itertools import repeat

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.errors import DataError, RecordError
from tests.ranks import run as run_ranks

MODEL = "gpt:layers=1,hidden=256,heads=4,vocab=256,sequence=64"
STEPS = 3


def start(loss="cross_entropy", plan="fp32", model=MODEL, **how):
    return sl.climb(sl.build(model), loss=loss, optimizer="adamw lr=1e-3", plan=plan, **how)


def batch(rows=8, length=64):
    tokens = torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(0))
    return tokens, tokens


def kinds(profile):
    return {finding.kind for finding in profile.findings} - {"plan"}


def adds_up(profile):
    return abs(profile["unexplained_seconds"]) < 0.03 * profile["step_seconds"]


def steady(profile):
    """Whether each rank's steps were alike: one that is stopped for a while is not the slow one."""
    return all(max(own) < 1.5 * min(own) for own in profile["own_seconds"])


def undisturbed(measure, fine):
    """A measurement that is fine, else the third of three.

    A busy machine may take the processor away between two marks of the clock, or from one rank
    alone; not each time. What is wrong with the measuring itself is wrong each time.
    """
    for _ in range(2):
        if fine(found := measure()):
            return found
    return measure()


def felt_pause(run):
    """Seconds that stand out of this run's steps, however slow a busy machine makes them."""
    slowest = 0.0
    for _ in range(3):  # of which the first is not the usual one
        began = time.perf_counter()
        run.step(batch(), rows="rank")
        slowest = max(slowest, time.perf_counter() - began)
    return max(0.25, 3 * slowest)


@pytest.mark.soak
def test_a_healthy_run_adds_up_to_the_clock_and_is_accused_of_nothing(tmp_path):
    runs = []

    def measure():
        runs.append(start())
        return runs[-1].profile(repeat(batch()), steps=STEPS, folder=tmp_path)

    found = undisturbed(measure, lambda profile: adds_up(profile.to_dict()))
    assert adds_up(found.to_dict())
    assert kinds(found) == set(), [str(finding) for finding in found.findings]
    assert found.bound.startswith("compute-bound")
    assert found.causes["matrix"] > found.causes["launch"]
    assert found.mfu is None and "unknown MFU" in found.bound  # nobody knows this processor's peak
    assert found.flops_per_second and found.bytes_per_second and found.overhead > 0
    assert runs[-1].index == 2 * STEPS + 3, "real steps of the run"
    trace = json.loads(gzip.decompress((tmp_path / "trace-rank0.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::addmm" for event in trace["traceEvents"])


def test_a_profile_leaves_nothing_behind():
    run = start()
    before = vars(type(run)).copy()
    run.profile(repeat(batch(2)), steps=1)
    assert vars(type(run)) == before
    assert not torch.autograd._profiler_enabled()
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_profiled_steps_learn_what_plain_steps_learn():
    profiled, plain = start(), start()
    profiled.profile(repeat(batch()), steps=1)
    for _ in range(5):
        plain.step(batch())
    for one, other in zip(profiled.module.parameters(), plain.module.parameters()):
        assert torch.equal(one, other)


@pytest.mark.soak
def test_a_slow_loader_is_named():
    rows, taken = batch(), []

    def slow():
        while True:
            began = time.perf_counter()
            time.sleep(0.1)
            taken.append(time.perf_counter() - began)  # a busy machine wakes it later
            yield rows

    def measure():
        taken.clear()
        return start().profile(slow(), steps=STEPS)

    found = undisturbed(measure, lambda profile: adds_up(profile.to_dict()))
    assert "data" in kinds(found)
    profiled = taken[-STEPS - 1 : -1]  # one more is looked at closely
    assert found.causes["data"] == pytest.approx(sum(profiled) / STEPS, rel=0.1)
    assert adds_up(found.to_dict())
    finding = next(f for f in found.findings if f.kind == "data")
    assert "slow loader" in finding.text and finding.gain > 1


def test_a_host_synchronisation_is_named_with_its_line():
    def loss(outputs, targets):
        mean = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
        return mean if mean.item() < 1e9 else mean * 0

    found = start(loss).profile(repeat(batch()), steps=STEPS)
    (finding,) = (f for f in found.findings if f.kind == "sync")
    assert "test_profile_steps.py:" in finding.text and "in loss needs a number" in finding.text
    assert "once a step" in finding.text


@pytest.mark.soak
def test_a_leaked_graph_is_named():
    kept = []

    def loss(outputs, targets):
        mean = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
        kept.append(mean)
        return mean

    found = start(loss).profile(repeat(batch()), steps=STEPS)
    assert kinds(found) == {"leak"}
    assert "a list of length" in next(f.text for f in found.findings)
    assert ".detach()" in found.findings[0].text


@pytest.mark.soak
def test_a_tiny_batch_is_launch_bound():
    found = start(model="gpt-tiny").profile(repeat(batch(1, 8)), steps=3)
    assert "launch" in kinds(found)
    finding = next(f for f in found.findings if f.kind == "launch")
    assert "operations a step" in finding.text and "micro-batch" in finding.fix


@pytest.mark.soak
def test_an_unfused_optimizer_is_named():
    run = start()
    groups = [{"params": g["params"], "lr_factor": 1.0} for g in run.optimizer.param_groups]
    run.optimizer = torch.optim.AdamW(groups, lr=1e-3, foreach=False, fused=False)
    found = run.profile(repeat(batch()), steps=STEPS)
    assert kinds(found) == {"optimizer"}
    assert "tensors" in found.findings[0].text


@pytest.mark.soak
def test_a_pause_in_python_is_not_taken_for_small_operations():
    run = start()
    pause = felt_pause(run)
    run.module.register_forward_pre_hook(lambda *_: time.sleep(pause))
    found = undisturbed(
        lambda: run.profile(repeat(batch()), steps=STEPS),
        lambda profile: adds_up(profile.to_dict()),
    )
    assert kinds(found) == {"host"}
    assert found.causes["host"] > pause


def test_a_feed_that_ends_is_refused():
    with pytest.raises(DataError, match="ended after 3 of the 7 batches that a profile takes"):
        start().profile([batch(2)] * 3, steps=2)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"trace-rank0.json.gz cannot be written"):
        start().profile(repeat(batch(2)), steps=1, folder=tmp_path / "file")


def profile_rank(plan, sleeper, moment, steps=STEPS):
    run = start(plan=plan)
    pause = felt_pause(run) if sleeper is not None else 0.0  # every rank takes these steps
    pause *= sleeper == run.world.place.rank

    def feed():
        while True:
            if moment == "data":
                time.sleep(pause)
            yield batch()

    if moment == "forward":
        run.module.register_forward_pre_hook(lambda *_: time.sleep(pause))
    if moment == "optimizer":
        run.optimizer.register_step_pre_hook(lambda *_: time.sleep(pause))
    found = run.profile(feed(), steps=steps, rows="rank")
    return found.to_dict() | {"pause": pause}


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["forward", "data", "optimizer"])
def test_a_rank_that_sleeps_is_named_by_both(moment):
    def measure():
        return run_ranks(profile_rank, 2, "fp32 ddp replicate=2", 1, moment)

    def fine(ranks):
        return all(adds_up(found) and steady(found) for found in ranks)

    ranks = undisturbed(measure, fine)
    for rank, found in enumerate(ranks):
        text = [f["text"] for f in found["findings"] if f["kind"] == "straggler"]
        assert len(text) == 1 and text[0].startswith("rank 1 is"), (rank, found)
        assert adds_up(found)
        fast, slow = (min(steps) for steps in found["own_seconds"])
        assert slow - fast == pytest.approx(ranks[1]["pause"], rel=0.4)


@pytest.mark.soak
@pytest.mark.parametrize("plan", ["fp32 ddp replicate=2", "fp32 zero3 shard=2"])
def test_healthy_ranks_add_up_and_name_nobody(plan):
    def accused(found):
        return [f for f in found["findings"] if f["kind"] in ("straggler", "sync", "leak")]

    def measure():
        # More steps: a rank that waits for a busy processor does so in some of them, not in all.
        return run_ranks(profile_rank, 2, plan, None, "", 6)

    def fine(ranks):
        return all(adds_up(found) and not accused(found) for found in ranks)

    for found in undisturbed(measure, fine):
        assert adds_up(found)
        assert accused(found) == []
        assert found["collectives"]["all_reduce"] > 0
