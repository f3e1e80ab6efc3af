"""A loss that jumps sends a run back, past the batches that did it; copies that drift end it."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from stepladder.data import Arrays, SampleOrder
from stepladder.errors import TrainingError, WorldError
from stepladder.job import open_job
from stepladder.plan import read_recipe
from stepladder.record import read_journal
from stepladder.world import StopSignals
from tests.ranks import run

BATCH, STEPS = 8, 40
WORDS = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "8",
    "--train.batch", str(BATCH), "--train.steps", str(STEPS), "--train.device", "cpu",
    "--train.evaluate_every", "0", "--train.evaluate_batches", "1", "--train.sample", "0",
    "--optimizer.lr", "0.02", "--optimizer.clip", "1", "--train.report_every", "4",
    "--train.save_every", "10",
]  # fmt: skip


def samples(bad_steps) -> Arrays:
    """Tokens to repeat, which is soon learned; in the batches of these steps something else."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 8, (BATCH * 64, 8), generator=draw)
    targets = tokens.clone()
    for step in bad_steps:
        rows = SampleOrder(len(tokens)).indices(np.arange(step * BATCH, (step + 1) * BATCH))
        targets[torch.from_numpy(rows)] = 200
    return Arrays(tokens, targets)


def train(folder: str, *words: str, bad_steps=(26,), steps: int = STEPS):
    """A run on such samples: where it ended, its message, its parameters."""
    with ExitStack() as stack:
        recipe = read_recipe(None, [*WORDS, "--run.folder", folder, *words])
        job = open_job(recipe, recipe.plan_choice(), stack)
        job.training = samples(bad_steps)
        try:
            job.train(stack.enter_context(StopSignals()))
            said = ""
        except TrainingError as stopped:
            said = str(stopped)
        job.run.finish_saving()
        values = [p.detach().clone() for p in job.run.module.parameters()]
        return job.run.index, job.run.position, said, values


def events(folder) -> list[str]:
    return [entry["text"] for entry in read_journal(folder, kind="event")]


def test_a_spike_is_told_with_its_own_step_and_nothing_more_is_done(tmp_path):
    index, position, said, _ = train(str(tmp_path))
    assert (index, position, said) == (STEPS, STEPS * BATCH, "")
    assert [text.partition(",")[0].partition(" loss")[0] for text in events(tmp_path)] == [
        "step 26:"
    ]


def test_a_run_goes_back_and_reads_on_past_the_spike(tmp_path):
    index, position, _, values = train(str(tmp_path), "--train.spike", "rewind")
    # Seen in the report of step 28; step 20 is the newest checkpoint: 9 batches are never redone.
    assert (index, position) == (STEPS, (STEPS + 9) * BATCH)
    told = events(tmp_path)
    assert told[0].startswith("step 26: loss ")
    assert told[1] == (
        f"went back to step-000020; samples up to {29 * BATCH - 1} are not read again "
        "(1 of at most 3 times)"
    )
    steps = [entry["step"] for entry in read_journal(tmp_path, kind="step")]
    assert steps == [0, 4, 8, 12, 16, 20, 24, 28, 20, 24, 28, 32, 36, 39]
    assert all(value.isfinite().all() for value in values)


def test_a_run_killed_after_it_went_back_goes_on_the_same(tmp_path):
    words = ("--train.spike", "rewind")
    *_, expected = train(str(tmp_path / "one"), *words)
    with pytest.raises(KeyboardInterrupt):
        interrupted(str(tmp_path / "two"), *words)
    *_, found = train(str(tmp_path / "two"), *words, "--run.resume", "true")
    assert all(torch.equal(a, b) for a, b in zip(expected, found))


def interrupted(folder: str, *words: str) -> None:
    """A run that ends without a word in the step after it went back."""
    with ExitStack() as stack:
        recipe = read_recipe(None, [*WORDS, "--run.folder", folder, *words])
        job = open_job(recipe, None, stack)
        job.training = samples([26])
        take, turns = job.take_steps, []

        def once(*args):
            turns.append(args)
            if len(turns) > 1:
                raise KeyboardInterrupt
            return take(*args)

        job.take_steps = once
        job.train(stack.enter_context(StopSignals()))


def test_spikes_that_keep_coming_end_the_run(tmp_path):
    _, _, said, _ = train(
        str(tmp_path), "--train.spike", "rewind", "--train.rewinds", "1", bad_steps=(26, 42)
    )
    assert "after going back 1 times. Lower the learning rate, look at the data" in said


def test_a_spike_may_stop_or_be_passed_over(tmp_path):
    index, _, said, _ = train(str(tmp_path / "stop"), "--train.spike", "stop")
    assert said.startswith("step 26: the loss jumped: loss ") and "train.spike=rewind" in said
    assert index == 29
    index, *_ = train(str(tmp_path / "off"), "--train.spike", "off")
    assert index == STEPS and events(tmp_path / "off") == []


def test_nothing_bad_is_saved_as_what_to_go_back_to(tmp_path):
    """The spike falls between a report and a save."""
    _, position, _, _ = train(str(tmp_path), "--train.spike", "rewind", bad_steps=(29,))
    assert position == (STEPS + 10) * BATCH
    assert "went back to step-000020" in events(tmp_path)[1]


def on_ranks(folder: str, *words: str):
    index, position, said, values = train(folder, *words)
    return index, position, said, [value.tolist() for value in values]


def test_all_ranks_go_back_together(tmp_path):
    words = ("--train.spike", "rewind", "--plan.replicate", "2")
    one, other = run(on_ranks, 2, str(tmp_path), *words, init=False)
    assert one == other
    assert one[:2] == (STEPS, (STEPS + 9) * BATCH)
    assert sum("went back" in text for text in events(tmp_path)) == 1


def drift(folder: str) -> str:
    words = ["--plan.replicate", "3", "--train.check_copies_every", "3", "--train.batch", "12"]
    with ExitStack() as stack:
        recipe = read_recipe(None, [*WORDS, "--run.folder", folder, *words])
        job = open_job(recipe, recipe.plan_choice(), stack)
        after_step = job.after_step

        def perturbed(step, *args):
            if step == 3 and job.run.world.place.rank == 2:
                with torch.no_grad():
                    job.run.climbed.shards[1].owned.view(-1)[0] += 1e-3
            return after_step(step, *args)

        job.after_step = perturbed
        try:
            job.train(stack.enter_context(StopSignals()))
        except WorldError as found:
            return str(found)
    return "alike"


def test_a_rank_whose_copy_drifted_is_named_at_the_next_check(tmp_path):
    said = run(drift, 3, str(tmp_path), init=False)
    assert said[0].startswith("step 6: the parameters of rank 2 are not those of the other copies.")
    assert len(set(said)) == 1
