from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import OutOfMemory
from stepladder.plan import Plan
from stepladder.planner.out_of_memory_advice import explain_out_of_memory, memory_savings
from stepladder.record import Memory, Rehearsal
from stepladder.record.rehearsal import PeakTensor, RehearsedChange

GIB = 2**30


def words(memory, plan, **options):
    return [way.words for way in memory_savings(memory, Plan.parse(plan), **options)]


def saved(memory, plan, name, **options):
    ways = memory_savings(memory, Plan.parse(plan), **options)
    return next(way.saved_bytes for way in ways if way.words == name) / GIB


def test_the_message_names_the_owner_and_the_ways_with_their_effect():
    memory = Memory(
        parameters=8 * GIB, gradients=8 * GIB, optimizer=16 * GIB, activations=52 * GIB,
        temporary=7 * GIB,
    )  # fmt: skip
    error = explain_out_of_memory(memory, 80 * GIB, Plan.parse("bf16 micro=4"))
    assert isinstance(error, OutOfMemory)
    assert str(error) == (
        "memory: this plan needs 91.0 GiB and the device has 80.0. Largest owner: activations, "
        "52.0 GiB. Cheapest ways down: micro=2 (saves 26.0 GiB, free); recompute=selective (saves "
        "23.6 GiB, costs a few percent of the time); recompute=blocks (saves 44.4 GiB, costs about "
        "a third of the time); offload=activations (saves 46.8 GiB, costs as the host link is "
        "slow)."
    )
    tighter = explain_out_of_memory(memory, 60 * GIB, Plan.parse("bf16 micro=4"))
    assert "alone" not in str(tighter)  # micro=2 is not enough, recompute=blocks is


def rehearsed(gib):
    made = PeakTensor(4 * GIB, "activations", "layers.0.mlp", "forward", (8, 4))
    memory = Memory(activations=(gib - 1) * GIB, reserved=GIB)
    return Rehearsal("bf16", 1, 0, "cuda", memory, "backward", "layers.3", {}, (made,), 9)


def test_a_rehearsed_failure_names_the_moment_the_module_and_what_changes_free():
    changes = [
        RehearsedChange("micro=2", rehearsed(60), 26 * GIB, True),
        RehearsedChange("recompute=selective", rehearsed(85), 6 * GIB, False),
    ]
    held, plan = Memory(activations=91 * GIB), Plan.parse("bf16 micro=4")
    error = explain_out_of_memory(held, 80 * GIB, plan, rehearsed=rehearsed(91), changes=changes)
    assert str(error) == (
        "memory: this plan needs 91.0 GiB and the device has 80.0. Rehearsed, it ends in backward, "
        "at layers.3. Largest owner: activations, 90.00 GiB, its largest of 4.00 GiB made in "
        "layers.0.mlp in forward. Cheapest ways down, rehearsed: micro=2 (frees 26 GiB, fits); "
        "recompute=selective (frees 6 GiB, does not fit alone)."
    )
    shared = explain_out_of_memory(held, 80 * GIB, plan, rehearsed=rehearsed(9), changes=changes)
    assert "The step by itself needs 9 GiB: something else holds the rest." in str(shared)
    assert "micro=2 (frees 26 GiB);" in str(shared)  # nobody knows whether that is enough


def test_state_that_keeps_every_bit_is_offered_before_state_that_rounds():
    memory = Memory(parameters=2 * GIB, gradients=2 * GIB, optimizer=12 * GIB)
    error = explain_out_of_memory(memory, 12 * GIB, Plan.parse("bf16-master micro=1"))
    assert "state=14 (saves 2.0 GiB, free); state=7 (saves 9.0 GiB, moments in 8 bits)" in str(
        error
    )


def test_when_none_is_enough_alone_it_says_how_much_is_missing():
    memory = Memory(parameters=90 * GIB, activations=10 * GIB)
    error = explain_out_of_memory(memory, 40 * GIB, Plan.parse("bf16-pure micro=2"))
    assert "None is enough alone: 60.0 GiB are missing." in str(error)


def test_when_nothing_can_give_way_it_says_so():
    memory = Memory(parameters=90 * GIB)
    error = explain_out_of_memory(memory, 80 * GIB, Plan.parse("bf16-pure micro=1"))
    assert str(error).endswith(
        "Nothing in the plan can give way: use a larger device, or a smaller model."
    )


def test_only_what_the_plan_does_not_do_already_is_offered():
    memory = Memory(parameters=GIB, gradients=GIB, optimizer=2 * GIB, activations=20 * GIB)
    assert "micro=1" in words(memory, "bf16 micro=2")
    assert not [w for w in words(memory, "bf16 micro=1") if w.startswith("micro")]
    assert "recompute=selective" not in words(memory, "bf16 recompute=selective")
    assert "recompute=blocks" in words(memory, "bf16 recompute=selective")
    assert not [w for w in words(memory, "bf16 recompute=blocks") if w.startswith("recompute")]
    assert not [w for w in words(memory, "bf16") if w.startswith("zero")]  # one rank
    assert "bf16" in words(memory, "fp32") and "bf16" not in words(memory, "bf16")
    assert "bf16-pure" not in words(memory, "bf16-pure")
    assert "offload=optimizer" not in words(memory, "bf16 offload=optimizer")
    assert "offload=activations" not in words(memory, "bf16 offload=activations")


def test_slices_save_what_the_other_ranks_take_over():
    memory = Memory(parameters=8 * GIB, gradients=8 * GIB, optimizer=16 * GIB)
    plan = "bf16 ddp replicate=4"
    assert saved(memory, plan, "zero1 shard=4") == 12
    assert saved(memory, plan, "zero2 shard=4") == 18
    assert saved(memory, plan, "zero3 shard=4") == 24
    assert words(memory, "bf16 zero2 shard=4")[0] == "zero3"


def test_an_uneven_micro_batch_is_halved_downwards():
    memory = Memory(activations=9 * GIB)
    assert saved(memory, "bf16 micro=3", "micro=1") == 6


def test_logits_shrink_with_the_micro_batch_and_not_with_recomputation():
    memory = Memory(activations=11 * GIB, logits=10 * GIB)
    assert saved(memory, "bf16 micro=2", "micro=1") == 10.5
    assert saved(memory, "bf16 micro=2", "recompute=blocks", num_blocks=22) == 10


def test_recomputing_more_is_counted_from_what_is_kept_now():
    memory = Memory(activations=12 * GIB)
    assert round(saved(memory, "bf16 recompute=selective", "recompute=blocks", num_blocks=22)) == 10


SIZES = st.integers(0, 100 * GIB)


@given(
    SIZES, SIZES, SIZES, SIZES, st.integers(1, 64), st.sampled_from(["fp32", "bf16", "bf16-pure"])
)
def test_no_way_saves_more_than_there_is_and_the_cheapest_comes_first(p, g, o, a, micro, precision):
    memory = Memory(parameters=p, gradients=g, optimizer=o, activations=a)
    ways = memory_savings(memory, Plan.parse(f"{precision} ddp replicate=8 micro={micro}"))
    assert all(0 < way.saved_bytes <= memory.peak_bytes for way in ways)
    assert [way.rank for way in ways] == sorted(way.rank for way in ways)
