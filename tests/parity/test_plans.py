"""Every rung computes what one device computes: losses, gradient norms and parameters.

A short form of benchmarks/parity.py, which runs every plan for ten steps.
"""

import pytest

from .pool import CLIPPED, FOREIGN, LLAMA, SGD, compare

pytestmark = pytest.mark.xdist_group("ranks")

PLANS = [
    "fp32 ddp",
    "fp32 zero1",
    "fp32 zero2",
    "fp32 zero3",
    "fp16 ddp",
    "bf16 zero3 recompute=blocks",
]
OTHERS = [
    ("resnet-tiny", "fp32 zero3"),  # statistics of a pass, shapes that no two ranks share evenly
    ("mlp-tiny", "fp32 zero1"),
    (f"{FOREIGN}:odd", "fp32 ddp"),  # tied weights, a branch some passes skip, a frozen parameter
    (f"{FOREIGN}:odd", "fp32 zero3"),
    (f"{FOREIGN}:hf_gpt2", "fp32 zero2"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.mark.parametrize("optimizer", [SGD, CLIPPED])
@pytest.mark.parametrize("plan", PLANS)
def test_two_ranks_compute_what_one_does(plan, optimizer, folder):
    found = compare(folder, LLAMA, plan, optimizer)
    assert (found.verdict, found.problem) == ("same", "")


@pytest.mark.parametrize(("model", "plan"), OTHERS)
def test_for_models_of_any_make(model, plan, folder):
    found = compare(folder, model, plan)
    assert (found.verdict, found.problem) == ("same", "")


def uneven(plan: str, sizes: tuple[int, ...]):
    """Learn from batches that no number of ranks but one divides."""
    taken = climb(
        llama(), loss="cross_entropy", optimizer="sgd lr=0.5", plan=f"{plan} micro=1", device="cpu"
    )
    ways, losses = taken.world.layout.data_ways, []
    for size, (tokens, targets) in zip(sizes, ragged(len(sizes))):
        rows = uneven_share(size, taken.world.data_index, ways)
        mine = slice(rows.start, rows.stop)
        batch = Batch.of((tokens[mine], targets[mine]), position=taken.position, size=size)
        losses.append(taken.step(batch).loss)
    return losses, taken.evaluate([batch])


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 zero3"])
def test_a_batch_that_does_not_divide_is_shared_unevenly_and_computes_the_same(plan):
    expected = uneven("fp32", (11, 7, 12))
    for losses, loss in run(uneven, 2, plan, (11, 7, 12), init=False):
        assert losses == pytest.approx(expected[0], rel=1e-5)
        assert loss == pytest.approx(expected[1], rel=1e-5)
