"""Memory by owner adds up, whoever filled it in."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from stepladder.record import Memory

OWNERS = [field.name for field in fields(Memory)]
memories = st.builds(Memory, *[st.integers(0, 2**40)] * len(OWNERS))


@given(memories)
def test_the_peak_is_the_sum_of_the_owners(memory):
    assert memory.peak_bytes == sum(getattr(memory, owner) for owner in OWNERS)
    assert list(memory.by_owner()) == OWNERS


@given(memories)
def test_what_tensors_hold_leaves_out_the_runtime_and_the_allocator(memory):
    assert memory.allocated_bytes + memory.context + memory.reserved == memory.peak_bytes
    assert memory.reserved_bytes == memory.allocated_bytes + memory.reserved


@given(memories, memories)
def test_a_difference_is_measured_minus_forecast_by_owner(measured, forecast):
    difference = measured - forecast
    assert difference == {o: getattr(measured, o) - getattr(forecast, o) for o in OWNERS}
    assert sum(difference.values()) == measured.peak_bytes - forecast.peak_bytes


def test_state_is_what_lives_from_step_to_step():
    memory = Memory(parameters=4, working=8, gradients=16, optimizer=32, activations=64)
    assert memory.state_bytes == 4 + 16 + 32


def test_the_largest_owner_is_named():
    assert Memory(activations=5, logits=7, optimizer=6).largest_owner() == ("logits", 7)
