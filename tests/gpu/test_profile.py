"""What only a GPU can show of a profile: kernels on streams, idle gaps, the allocator's history."""

import gzip
import json
import pickle
import time
from itertools import repeat

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.measure import record_timeline

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODEL = "gpt:layers=4,hidden=2048,heads=16,vocab=8192,sequence=512"
STEPS = 4


def start(loss="cross_entropy", plan="bf16", model=MODEL):
    return sl.climb(sl.build(model), loss=loss, optimizer="adamw lr=1e-4", plan=plan)


def batch(rows=32, length=512):
    tokens = torch.randint(0, 256, (rows, length))
    return tokens, tokens


def kinds(profile):
    return {finding.kind for finding in profile.findings} - {"plan"}


def plain_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs.float().flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("plan", ["bf16", "fp32", "bf16 compile=on"])
def test_causes_add_up_to_the_clock_and_a_healthy_run_is_accused_of_nothing(plan, tmp_path):
    found = start(plan=plan).profile(repeat(batch()), steps=STEPS, folder=tmp_path)
    assert abs(found.unexplained_seconds) < 0.03 * found.step_seconds, found
    assert kinds(found) == set(), [str(finding) for finding in found.findings]
    assert found.busy_share > 0.7
    assert found.causes["matrix"] > 0 and found.causes["attention"] > 0
    assert found.causes["optimizer"] > 0 and found.causes["memory_bound"] > 0
    assert 0 < found.mfu < 1
    trace = json.loads(gzip.decompress((tmp_path / "trace-rank0.json.gz").read_bytes()))
    assert any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def test_offers_are_forecast_for_this_device():
    found = start(plan="fp32").profile(repeat(batch()), steps=STEPS)
    words = " ".join(finding.text for finding in found.findings if finding.kind == "plan")
    assert "bf16 would give" in words
    assert "would give" in found.bound


def test_bandwidth_is_below_the_devices_peak():
    found = start(plan="fp32").profile(repeat(batch()), steps=STEPS)
    assert found.bytes_per_second and found.peak_bytes_per_second
    # Tensors that fit the cache are read faster than memory gives them.
    assert found.bytes_per_second < 2 * found.peak_bytes_per_second


def test_a_slow_loader_is_named():
    def slow():
        while True:
            time.sleep(0.1)
            yield batch()

    found = start().profile(slow(), steps=STEPS)
    assert "data" in kinds(found)
    assert abs(found.unexplained_seconds) < 0.03 * found.step_seconds


def test_a_host_synchronisation_is_named_with_its_line():
    def loss(outputs, targets):
        mean = plain_loss(outputs, targets)
        return mean if mean.item() < 1e9 else mean * 0

    found = start(loss).profile(repeat(batch()), steps=STEPS)
    texts = [finding.text for finding in found.findings if finding.kind == "sync"]
    assert len(texts) == 1 and "test_profile.py:" in texts[0], texts


def test_a_synchronisation_without_a_line_is_named_by_its_time():
    def loss(outputs, targets):
        torch.cuda.synchronize()
        return plain_loss(outputs, targets)

    found = start(loss).profile(repeat(batch()), steps=STEPS)
    assert "sync" in kinds(found)


def test_a_leaked_graph_is_named():
    kept = []

    def loss(outputs, targets):
        kept.append(plain_loss(outputs, targets))
        return kept[-1]

    found = start(loss).profile(repeat(batch(4)), steps=STEPS)
    assert "leak" in kinds(found)


def test_a_tiny_batch_is_launch_bound():
    found = start(model="gpt-tiny").profile(repeat(batch(1, 8)), steps=STEPS)
    assert "launch" in kinds(found), found
    assert found.busy_share < 0.5
    assert abs(found.unexplained_seconds) < 0.03 * found.step_seconds


def test_an_unfused_optimizer_is_named():
    run = start()
    groups = [{"params": g["params"], "lr_factor": 1.0} for g in run.optimizer.param_groups]
    run.optimizer = torch.optim.AdamW(groups, lr=1e-4, foreach=False, fused=False)
    found = run.profile(repeat(batch()), steps=STEPS)
    assert "optimizer" in kinds(found)


def test_memory_over_a_step_agrees_with_the_allocators_history(tmp_path):
    run, (inputs, targets) = start(), batch()
    given = inputs.cuda(), targets.cuda()
    for _ in range(2):
        run.step(given).read()
    snapshot = tmp_path / "memory.pickle"
    found = record_timeline(
        lambda: run.step(given).read(), run.module, run.optimizer, run.world.device,
        vocab=8192, snapshot=snapshot,
    )  # fmt: skip
    assert pickle.loads(snapshot.read_bytes())["device_traces"]
    history = max(size for _, size in found.allocator)
    assert history == pytest.approx(found.memory.allocated_bytes, rel=0.02)
    seen = max(sum(column) for column in zip(*found.owners.values()))
    assert seen == pytest.approx(history, rel=0.10)
    assert any(holder.name.startswith("blocks.") for holder in found.holders)
