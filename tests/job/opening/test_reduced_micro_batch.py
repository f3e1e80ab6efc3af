"""Out of memory on one rank: all start again with a smaller micro-batch, and finish."""

import os
from dataclasses import replace

import pytest
import torch

from stepladder.errors import RankOutOfMemory, RecordError
from stepladder.job import open_job, train, train_recipe
from stepladder.job.opening.reduced_micro_batch import apply_reduced_micro, save_reduced_micro
from stepladder.plan import Plan, Recipe, read_recipe
from stepladder.record import read_journal
from stepladder.world import Place
from tests.ranks import run

WORDS = [
    "--model.sequence", "8", "--train.batch", "16", "--train.steps", "4", "--train.device", "cpu",
    "--train.evaluate_every", "0", "--train.evaluate_batches", "1", "--train.sample", "0",
    "--train.report_every", "1", "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256",
]  # fmt: skip


def leg(folder: str, rows: int | None):
    """The run as one rank of it; rank 1 has memory for micro-batches of so many rows."""

    def start(*args, **options):
        job = open_job(*args, **options)
        if rows and job.run.world.place.rank == 1:
            job.run.module.blocks[0].register_forward_pre_hook(full)
        return job

    def full(_, inputs):
        if inputs[0].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    train_recipe.open_job = start
    try:
        recipe = read_recipe(None, [*WORDS, "--run.folder", folder])
        train(recipe, plan="fp32 zero3 micro=4", elastic=True)
    except RankOutOfMemory:
        if Place.from_environment().rank == 1:
            os._exit(1)  # as a rank of a command does
        raise
    finally:
        train_recipe.open_job = open_job


def losses(folder) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in read_journal(folder, kind="step")}


def test_one_rank_runs_out_and_started_again_all_end_as_if_it_had_not(tmp_path):
    tight, roomy = tmp_path / "tight", tmp_path / "roomy"
    for rows in (4,):
        said = (
            f"out of memory on rank 1 with micro-batches of {rows}. Go on with micro={rows // 2}."
        )
        with pytest.raises(RankOutOfMemory, match=said):
            run(leg, 2, str(tight), 2)
    run(leg, 2, str(tight), 2)
    run(leg, 2, str(roomy), None)
    assert losses(tight) == pytest.approx(losses(roomy), rel=1e-5) and len(losses(roomy)) == 4
    plans = [entry["plan"] for entry in read_journal(tight, kind="start")]
    assert ["micro=" + word.partition("micro=")[2][0] for word in plans] == [
        "micro=4", "micro=2"
    ]  # fmt: skip
    events = [entry["text"] for entry in read_journal(tight, kind="event")]
    assert any(
        "going on with 2 rows per micro-batch: one rank ran out" in text for text in events
    ), events


def short(micro: int) -> RankOutOfMemory:
    error = RankOutOfMemory("step 3", "out of memory on rank 1", "Go on.")
    error.micro = micro
    return error


def test_the_saved_micro_batch_changes_nothing_else_of_the_plan(tmp_path):
    recipe = Recipe()
    recipe = replace(recipe, run=replace(recipe.run, folder=str(tmp_path)))
    plan = Plan.parse("bf16 zero3 shard=2 micro=8 batch=32")
    assert apply_reduced_micro(plan, recipe) == (plan, [])
    save_reduced_micro(tmp_path, short(2))
    smaller, (said,) = apply_reduced_micro(plan, recipe)
    assert (
        str(smaller) == str(plan).replace("micro=8", "micro=2") and "2 rows per micro-batch" in said
    )
    assert apply_reduced_micro(smaller, recipe) == (smaller, [])  # already as small
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert str(apply_reduced_micro(None, recipe)[0]) == str(smaller)  # as it was chosen


def test_nothing_is_saved_where_one_row_is_too_many_and_nonsense_is_refused(tmp_path):
    recipe = replace(Recipe(), run=replace(Recipe().run, folder=str(tmp_path)))
    save_reduced_micro(tmp_path, short(0))
    assert not list(tmp_path.iterdir())
    (tmp_path / "micro").write_text("many")
    with pytest.raises(RecordError, match="holds 'many', no number of rows. Remove it."):
        apply_reduced_micro(Plan(), recipe)
