"""A run of a model with more between its blocks goes on in another layout."""

import pytest

from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after

from .chains import ALL


def learn(name, plan, first, last, folder):
    """Go on from the folder's newest checkpoint, take these steps, save; the losses."""
    make, batches, loss = ALL[name]
    given = batches(6)
    taken = climb(
        make(), loss=loss, optimizer="adamw lr=1e-2 clip=0.5", plan=f"{plan} micro=2",
        device="cpu", sample=given[0],
    )  # fmt: skip
    if first:
        taken.load(folder)
    losses = [taken.step(batch, rows="global").loss for batch in given[first:last]]
    taken.save(folder)
    taken.world.close()
    return losses


LEGS = [
    ("fp32 pipeline=2", 2),
    ("fp32 zero3 shard=2", 2),
    ("fp32 pipeline=2 schedule=interleaved:2", 2),
]


@pytest.mark.parametrize(
    "name", soak_after(["post_norm", "repeated", "returning", "translator"], gate=2)
)
def test_a_pipeline_moves_to_another_layout_and_back(name, tmp_path):
    straight = learn(name, "fp32", 0, 6, str(tmp_path / "straight"))
    found = []
    for leg, (plan, ranks) in enumerate(LEGS):
        told = (name, plan, 2 * leg, 2 * leg + 2, str(tmp_path / "moved"))
        found += run(learn, ranks, *told, init=False)[0]
    assert found == pytest.approx(straight, rel=1e-5)
