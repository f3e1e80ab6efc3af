"""Memory over a step: the curve is the ledger's, the peak has its moment and its holders."""

import torch

import stepladder as sl
from stepladder.measure import record_timeline
from stepladder.measure.memory_timeline import POINTS, allocator_curve, thinned


def measured(plan="fp32", optimizer="adamw lr=1e-3"):
    run = sl.climb(
        sl.build("gpt-tiny", sequence=32), loss="cross_entropy", optimizer=optimizer, plan=plan
    )
    tokens = torch.randint(0, 256, (4, 32))
    run.step((tokens, tokens))
    return run, record_timeline(
        lambda: run.step((tokens, tokens)), run.module, run.optimizer, run.world.device, vocab=256
    )


def test_the_curve_begins_with_the_state_and_reaches_the_peak():
    run, found = measured()
    state = sum(p.nbytes for p in run.module.parameters())
    assert found.owners["parameters"][0] == state
    assert found.at["start"].activations == 0
    totals = [sum(column) for column in zip(*found.owners.values())]
    assert max(totals) == found.memory.peak_bytes
    assert found.at["peak"].peak_bytes == found.memory.peak_bytes
    assert found.at["peak"] == found.memory
    assert len(found.moments) <= POINTS and found.moments == sorted(found.moments)


def test_activations_grow_through_forward_and_are_gone_at_the_update():
    _, found = measured()
    assert found.at["backward"].activations > 0
    assert found.at["update"].activations < 1e-3 * found.at["backward"].activations
    assert found.at["update"].gradients == found.at["update"].parameters
    assert 0 < found.marks["backward"] < found.marks["update"] < 1


def test_the_peaks_holders_are_modules_and_state():
    _, found = measured()
    names = {holder.name for holder in found.holders}
    assert "parameters" in names and "optimizer" in names
    assert any(name.startswith("blocks.") for name in names), names
    assert found.peak_phase in ("forward", "backward")
    assert found.peak_phase in found.describe_peak()


def test_recomputing_lowers_the_curve_where_backward_begins():
    plain, less = measured()[1], measured("fp32 recompute=blocks")[1]
    assert less.at["backward"].activations < 0.5 * plain.at["backward"].activations


def test_a_thinned_curve_keeps_its_peaks():
    sizes = [0] * 5000
    sizes[3333] = 7
    kept = thinned(sizes)
    assert len(kept) <= POINTS and 3333 in kept


def test_the_allocators_history_is_added_up():
    events = [
        {"action": "segment_alloc", "size": 99},
        {"action": "alloc", "size": 10},
        {"action": "alloc", "size": 5},
        {"action": "free_requested", "size": 10},
        {"action": "free_completed", "size": 10},
    ]
    assert [size for _, size in allocator_curve(100, events)] == [110, 115, 105]
