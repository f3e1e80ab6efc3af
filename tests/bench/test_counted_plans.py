"""What is counted of a plan: bytes by arithmetic on the model's own sizes."""

import pytest

from stepladder.bench import make_workload
from stepladder.bench.counted_plans import CountLoad, count_rank, equal_plans
from stepladder.errors import PlanError
from tests.ranks import run

MODEL, SEQUENCE, HIDDEN = "gpt:layers=2,hidden=16,heads=2,vocab=256", 8, 16
LOAD = CountLoad(MODEL, SEQUENCE)
PLAIN, STAGES, SHARDS = (
    "fp32 ddp replicate=2 micro=4 batch=8",
    "fp32 pipeline=2 schedule=1f1b micro=1 batch=8",
    "fp32 zero3 shard=2 micro=4 batch=8",
)


def parameter_bytes():
    work = make_workload(MODEL, batch=1, sequence=SEQUENCE, num_batches=1)
    return sum(each.nbytes for each in work.make().parameters())


def counted(words, samples=8):
    return [(memory, sent) for memory, sent, _ in run(count_rank, 2, LOAD, words, samples)]


def test_ddp_sends_its_gradients_once_whatever_the_number_of_passes():
    (memory, sent), _ = counted(PLAIN)
    whole = parameter_bytes()
    assert whole <= sent <= 1.01 * whole, "two ways of half the bytes to the one other rank"
    assert memory.parameters == whole
    (_, again), _ = counted("fp32 ddp replicate=2 micro=1 batch=8")
    assert again == sent


def test_a_pipeline_sends_each_activation_and_its_gradient_and_holds_a_part():
    rows = counted(STAGES)
    activations = 8 * SEQUENCE * HIDDEN * 4  # of all samples, in float32
    tied = 256 * HIDDEN * 4  # the table that both ends hold: its gradients are added up
    for memory, sent in rows:
        assert activations + tied <= sent <= activations + tied + 1024
        assert memory.parameters < parameter_bytes()


def test_full_sharding_holds_half_and_sends_parameters_and_gradients():
    for memory, sent in counted(SHARDS):
        whole = parameter_bytes()
        assert memory.parameters == pytest.approx(whole / 2, rel=0.02)
        # Half of each gather, forward and where it was freed also backward, and of the sums.
        assert 1.0 * whole <= sent <= 1.55 * whole


def test_equal_plans_have_the_same_ranks_and_the_same_batch():
    named = dict(equal_plans(4, 8))
    assert named["DDP"] == "fp32 ddp replicate=4 micro=2 batch=8"
    assert all(words.endswith("batch=8") for words in named.values())
    with pytest.raises(PlanError) as error:
        equal_plans(4, 6)
    assert str(error.value) == (
        "batch: 6 samples do not divide over 4 ranks. Nearest that do: 4 or 8."
    )
