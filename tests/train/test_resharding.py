"""A run goes on with other ranks or another layout: same data, same losses within precision."""

from pathlib import Path

import pytest

from stepladder.train import climb

from ..ranks import run
from .toys import llama, ragged, share_of

pytestmark = pytest.mark.xdist_group("ranks")

BATCHES = ragged(8)


def learn(plan: str, optimizer: str, first: int, last: int, folder: str, wait: bool = True):
    """Go on from the folder's newest checkpoint, take these steps, save."""
    taken = climb(
        llama(seed=first), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu"
    )
    if first:
        taken.load(folder)
    world = taken.world
    losses = []
    for batch in BATCHES[first:last]:
        mine = share_of(batch, world.data_index, world.layout.data_ways, 1)
        losses.append(taken.step(mine).loss)
    taken.save(folder, wait=wait)
    taken.finish_saving()
    world.close()
    return losses


def relay(legs, optimizer: str, folder: Path, wait: bool = True) -> list[float]:
    """The losses of a run that changes ranks and plan on the way."""
    losses: list[float] = []
    for plan, ranks, first, last in legs:
        found = run(
            learn, ranks, plan, optimizer, first, last, str(folder), wait,
            init=False, timeout_seconds=120,
        )  # fmt: skip
        assert all(other == found[0] for other in found)
        losses += found[0]
    return losses


RELAYS = [
    [("fp32 zero3 micro=1", 4, 0, 2), ("fp32 zero1 micro=1", 2, 2, 4),
     ("fp32 zero2 micro=1", 3, 4, 6), ("fp32 micro=1", 1, 6, 8)],
    [("fp32 micro=1", 1, 0, 2), ("fp32 ddp micro=1", 2, 2, 4),
     ("fp32 hsdp replicate=2 shard=2 micro=1", 4, 4, 6), ("fp32 zero1 micro=1", 3, 6, 8)],
]  # fmt: skip


@pytest.mark.parametrize("legs", RELAYS)
def test_other_ranks_and_layouts_go_on_as_if_nothing_had_happened(tmp_path, legs):
    optimizer = "adamw lr=1e-2 clip=0.5"
    straight = run(
        learn, 1, "fp32 micro=1", optimizer, 0, 8, str(tmp_path / "straight"), init=False
    )
    assert relay(legs, optimizer, tmp_path / "run") == pytest.approx(straight[0], rel=1e-5)


@pytest.mark.parametrize("plan", ["fp32 ddp micro=1", "fp32 zero1 micro=1", "fp32 zero3 micro=1"])
def test_the_same_ranks_go_on_bit_for_bit(tmp_path, plan):
    optimizer = "adamw lr=1e-2"
    (straight, _) = run(learn, 2, plan, optimizer, 0, 6, str(tmp_path / "straight"), init=False)
    legs = [(plan, 2, 0, 3), (plan, 2, 3, 6)]
    assert relay(legs, optimizer, tmp_path / "run", wait=False) == straight
    saved = [tmp_path / name / "step-000006" for name in ("straight", "run")]
    for file in sorted(path.name for path in saved[0].glob("*.safetensors")):
        if not file.startswith("rank-"):
            assert (saved[0] / file).read_bytes() == (saved[1] / file).read_bytes()
