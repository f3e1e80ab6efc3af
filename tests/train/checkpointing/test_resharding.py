"""A run goes on with other ranks or another layout: same data, same losses within precision."""

from pathlib import Path

import pytest

from stepladder.errors import RecordError
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import llama, ragged, share_of

BATCHES = ragged(8)
CLIPPED = "adamw lr=1e-2 clip=0.5"


def learn(
    plan: str, optimizer: str, first: int, last: int, folder: str, wait: bool = True,
    halfway: str = "",
):  # fmt: skip
    """Go on from the folder's newest checkpoint, take these steps, save.

    Args:
        halfway: where it also saves after half of its steps.
    """
    taken = climb(
        llama(seed=first), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu"
    )
    if first:
        taken.load(folder)
    world = taken.world
    losses = []
    for batch in BATCHES[first:last]:
        mine = share_of(batch, world.data_index, world.layout.data_ranks, 1)
        losses.append(taken.step(mine, rows="rank").loss)
        if halfway and 2 * len(losses) == last - first:
            taken.save(halfway, wait=wait)
    taken.save(folder, wait=wait)
    taken.finish_saving()
    world.close()
    return losses


def relay(legs, optimizer: str, folder: Path | str, wait: bool = True) -> list[float]:
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
    [("fp32 zero3 micro=3", 2, 0, 2), ("fp32 tensor=2 pipeline=2 micro=6", 4, 2, 4),
     ("fp32 ddp micro=3", 2, 4, 6), ("fp32 zero2 shard=2 context=2 micro=3", 4, 6, 8)],
    [("fp32 zero3 micro=1", 4, 0, 2), ("fp32 zero1 micro=3", 2, 2, 4),
     ("fp32 zero2 micro=2", 3, 4, 6), ("fp32 micro=6", 1, 6, 8)],
    [("fp32 micro=6", 1, 0, 2), ("fp32 ddp micro=3", 2, 2, 4),
     ("fp32 hsdp replicate=2 shard=2 micro=1", 4, 4, 6), ("fp32 zero1 micro=2", 3, 6, 8)],
]  # fmt: skip


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The losses of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("straight")
    return run(learn, 1, "fp32 micro=6", CLIPPED, 0, 8, str(folder), init=False)[0]


@pytest.mark.parametrize("legs", soak_after(RELAYS))
def test_other_ranks_and_layouts_go_on_as_if_nothing_had_happened(tmp_path, legs, straight):
    assert relay(legs, CLIPPED, tmp_path) == pytest.approx(straight, rel=1e-5)


@pytest.mark.parametrize(
    "plan",
    soak_after(
        [
            "fp32 zero3 micro=3",
            "fp32 zero1 micro=3",
            "fp32 ddp",
            "fp32 replicate=2 tensor=2 micro=3",
        ],
    ),
)
def test_the_same_ranks_go_on_bit_for_bit(tmp_path, plan):
    """Four of them: two numbers add up to the same in either order, four do not."""
    optimizer, wait = "adamw lr=1e-2", False
    whole, half = str(tmp_path / "whole"), str(tmp_path / "half")
    straight = run(learn, 4, plan, optimizer, 0, 4, whole, wait, half, init=False)[0]
    assert relay([(plan, 4, 2, 4)], optimizer, half, wait) == straight[2:]
    saved = [tmp_path / name / "step-000004" for name in ("whole", "half")]
    for file in sorted(path.name for path in saved[0].glob("*.safetensors")):
        if not file.startswith("rank-"):
            assert (saved[0] / file).read_bytes() == (saved[1] / file).read_bytes()


def save_where_one_cannot(folder: str) -> tuple[str, list[str]]:
    """Rank 1 sees another disk than rank 0, with a file where the folder should be."""
    taken = climb(llama(), loss="cross_entropy", plan="fp32 ddp micro=1", device="cpu")
    rank = taken.world.place.rank
    mine = Path(folder) / str(rank) / "run"
    mine.parent.mkdir()
    if rank == 1:
        mine.write_text("in the way")
    try:
        taken.save(mine)
    except RecordError as failed:
        return str(failed), sorted(path.name for path in Path(folder).rglob("step-*"))
    return "saved", []


def test_a_rank_that_cannot_write_fails_the_save_of_all_and_leaves_nothing(tmp_path):
    (first, seen), (second, _) = run(save_where_one_cannot, 2, str(tmp_path), init=False)
    assert first.startswith("checkpoint: another rank could not write its part.")
    assert "cannot be written (Not a directory)" in first
    assert "cannot be written (Not a directory)" in second
    assert seen == []


def load_where_one_is_damaged(folder: str) -> tuple[str, list[str]]:
    taken = climb(llama(), loss="cross_entropy", plan="fp32 zero3 micro=1", device="cpu")
    try:
        return taken.load(folder).name, taken.events
    except RecordError as refused:
        return str(refused), []


def test_all_ranks_turn_to_the_older_one_where_one_finds_the_newest_damaged(tmp_path):
    folder, wait = str(tmp_path), True
    run(learn, 2, "fp32 zero3 micro=1", "adamw", 0, 4, folder, wait, folder, init=False)
    victim = tmp_path / "step-000004" / "model-00001.safetensors"
    victim.write_bytes(victim.read_bytes()[:-4])
    found = run(load_where_one_is_damaged, 2, str(tmp_path), init=False)
    assert [name for name, _ in found] == ["step-000002"] * 2
    events = sorted(events[0] for _, events in found)
    assert "step-000004 is damaged, as another rank found." in events[0]
    assert "were written" in events[1]
