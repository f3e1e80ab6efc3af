"""Out of memory on one rank of a command: all start again with fewer rows a pass, and finish."""

import os
from argparse import Namespace
from dataclasses import replace

import pytest
import torch

from stepladder.cli.commands.train import train
from stepladder.cli.training.fewer_rows import leave_note, with_less
from stepladder.cli.training.session import Session
from stepladder.errors import RankOutOfMemory, RecordError
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
    """The command as one rank runs it; rank 1 has memory for so many rows a pass and no more."""
    begin = Session.start.__func__

    def start(cls, *args, **options):
        session = begin(cls, *args, **options)
        if rows and session.run.world.place.rank == 1:
            session.run.module.blocks[0].register_forward_pre_hook(full)
        return session

    def full(_, inputs):
        if inputs[0].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    Session.start = classmethod(start)
    try:
        recipe = read_recipe(None, [*WORDS, "--run.folder", folder])
        train(Namespace(json=True, elastic=True), recipe, Plan.parse("fp32 zero3 micro=4"))
    except RankOutOfMemory:
        if Place.from_environment().rank == 1:
            os._exit(1)  # as a rank of a command does
        raise
    finally:
        Session.start = classmethod(begin)


def losses(folder) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in read_journal(folder, kind="step")}


def test_one_rank_runs_out_and_started_again_all_end_as_if_it_had_not(tmp_path):
    tight, roomy = tmp_path / "tight", tmp_path / "roomy"
    for rows in (4,):
        said = f"out of memory on rank 1 with {rows} rows a pass. Go on with micro={rows // 2}."
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
    assert any("going on with 2 rows a pass: memory ran out" in text for text in events), events


def short(micro: int) -> RankOutOfMemory:
    error = RankOutOfMemory("step 3", "out of memory on rank 1", "Go on.")
    error.micro = micro
    return error


def test_the_note_changes_the_rows_a_pass_and_nothing_else(tmp_path):
    recipe = Recipe()
    recipe = replace(recipe, run=replace(recipe.run, folder=str(tmp_path)))
    plan = Plan.parse("bf16 zero3 shard=2 micro=8 batch=32")
    assert with_less(plan, recipe) == (plan, [])
    leave_note(tmp_path, short(2))
    smaller, (said,) = with_less(plan, recipe)
    assert str(smaller) == str(plan).replace("micro=8", "micro=2") and "2 rows a pass" in said
    assert with_less(smaller, recipe) == (smaller, [])  # already as small
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    assert str(with_less(None, recipe)[0]) == str(smaller)  # as it was chosen


def test_nothing_is_left_where_one_row_is_too_many_and_nonsense_is_refused(tmp_path):
    recipe = replace(Recipe(), run=replace(Recipe().run, folder=str(tmp_path)))
    leave_note(tmp_path, short(0))
    assert not list(tmp_path.iterdir())
    (tmp_path / "micro").write_text("many")
    with pytest.raises(RecordError, match="holds 'many', no number of rows. Remove it."):
        with_less(Plan(), recipe)
