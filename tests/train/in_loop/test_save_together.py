"""Two runs in one checkpoint: both are there or neither is, and both go on to the bit."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.errors import PlanError, RecordError
from stepladder.train import resume_together, save_together
from tests import ranks
from tests.train.toys import net, same_bits

PLAN = "fp32 micro=2"
SCRIPT = """
import sys
from tests.train.in_loop.test_save_together import killed_between
killed_between(sys.argv[1])
"""


def start(plan=PLAN, seed=0):
    """A generator with dropout and its critic, with optimizers that remember."""
    generator, critic = net(seed, dropout=0.2, classes=6), net(seed + 1, width=6, classes=1)

    def fools(fake, real):
        return nn.functional.binary_cross_entropy_with_logits(critic(fake).squeeze(1), real)

    def judges(logits, real):
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(1), real)

    how = {"optimizer": "adamw lr=0.01", "plan": plan, "device": "cpu"}
    generating = sl.climb(generator, loss=fools, **how)
    return {"generator": generating, "critic": sl.climb(critic, loss=judges, **how)}


def play(runs, steps):
    """Steps of both, from where they are; the losses."""
    losses = []
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        noise, real = (torch.randn(8, width, generator=draw) for width in (16, 6))
        with torch.no_grad():
            fake = runs["generator"].module.eval()(noise)
        rows = torch.cat((real, fake)), torch.cat((torch.ones(8), torch.zeros(8)))
        losses.append(runs["critic"].step(rows, rows="global").loss)
        losses.append(runs["generator"].step((noise, torch.ones(8)), rows="global").loss)
    return losses


def killed_between(folder):
    """Save a pair, go on, and be killed when the generator is saved and the critic is not."""
    runs = start()
    play(runs, range(2))
    save_together(folder, **runs)
    play(runs, range(2, 4))
    type(runs["critic"]).save = stopped_at(runs["critic"], lambda: os.kill(os.getpid(), 9))
    save_together(folder, **runs)


def stopped_at(stopped, stop):
    """`Run.save`, but that one run is stopped before it saves."""
    save = type(stopped).save

    def saving(run, *args, **named):
        return stop() if run is stopped else save(run, *args, **named)

    return saving


def go_on(folder, plan=PLAN):
    """What a resumed pair does, beside a pair that was never stopped."""
    whole = start(plan)
    play(whole, range(2))
    expected = play(whole, range(2, 5))
    resumed = start(plan, seed=7)
    path = resume_together(folder, **resumed)
    losses = play(resumed, range(2, 5))
    same = all(same_bits(whole[name].module, resumed[name].module) for name in whole)
    return path.name, losses == expected, same


def test_a_resumed_pair_is_bit_for_bit_the_pair_that_never_stopped(tmp_path):
    runs = start()
    play(runs, range(2))
    assert save_together(tmp_path, **runs) == tmp_path / "together-000001"
    assert go_on(tmp_path) == ("together-000001", True, True)


def test_a_process_killed_between_the_two_leaves_the_pair_before(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "runs")], timeout=100)
    assert done.returncode == -signal.SIGKILL
    [left] = [path for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]
    assert (left / "generator").exists() and not (left / "critic").exists()
    assert go_on(tmp_path / "runs") == ("together-000001", True, True)
    save_together(tmp_path / "runs", **start())
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert names == ["together-000001", "together-000002"]


class Killed(BaseException):
    """Ends a save as a signal would: nothing is tidied up."""


def killed():
    raise Killed


def on_ranks(folder, plan):
    runs = start(plan)
    play(runs, range(2))
    save_together(folder, **runs)
    play(runs, range(2, 4))
    kind, save = type(runs["critic"]), type(runs["critic"]).save
    kind.save = stopped_at(runs["critic"], killed)
    try:
        save_together(folder, **runs)
    except Killed:
        return go_on(folder, plan)
    finally:
        kind.save = save


def test_two_ranks_that_are_stopped_between_go_on_from_the_pair_before(tmp_path):
    found = ranks.run(on_ranks, 2, tmp_path, "fp32 zero1 shard=2 micro=2")
    assert found == [("together-000001", True, True)] * 2


def test_a_save_that_fails_leaves_nothing_but_the_pair_before(tmp_path):
    runs = start()
    save_together(tmp_path, **runs)
    runs["critic"].register_for_checkpointing("odd", Odd())
    with pytest.raises(PlanError, match="a checkpoint cannot hold its state_dict"):
        save_together(tmp_path, **runs)
    assert [path.name for path in tmp_path.iterdir()] == ["together-000001"]


class Odd:
    def state_dict(self):
        return {"object": object()}

    def load_state_dict(self, state):
        pass


def test_the_newest_two_are_kept_and_a_damaged_one_is_passed_over_for_both(tmp_path):
    runs = start()
    for _ in range(3):
        save_together(tmp_path, **runs)
        play(runs, [0])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["together-000002", "together-000003"]
    [damaged] = (tmp_path / "together-000003" / "critic").glob("step-*/model-*")
    damaged.write_bytes(b"")
    others = start(seed=5)
    assert resume_together(tmp_path, **others).name == "together-000002"
    assert others["generator"].index == others["critic"].index == 1
    [said] = [event for event in others["generator"].events if "Going on from" in event]
    assert said.endswith("Going on from together-000002.")
    (tmp_path / "together-000002" / "together.json").unlink()
    with pytest.raises(RecordError, match="critic/step-000002"):
        resume_together(tmp_path, **others)
    shutil.rmtree(tmp_path / "together-000003")
    with pytest.raises(RecordError) as caught:
        resume_together(tmp_path, **others)
    assert str(caught.value) == (
        f"checkpoint: {tmp_path}/together-000002/together.json cannot be read (FileNotFoundError). "
        "Use an older one."
    )


def test_a_folder_without_a_pair_is_where_one_begins(tmp_path):
    assert resume_together(tmp_path / "none", **start()) is None


def test_no_run_is_changed_where_another_is_of_another_model(tmp_path):
    save_together(tmp_path, **start())
    runs = start(seed=5)
    before = [p.clone() for p in runs["generator"].module.parameters()]
    other = sl.climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(PlanError, match="is of another model"):
        resume_together(tmp_path, generator=runs["generator"], critic=other)
    after = runs["generator"].module.parameters()
    assert all(torch.equal(one, two) for one, two in zip(before, after))


def test_wrong_names_and_what_is_no_run_are_told_in_a_line(tmp_path):
    runs = start()
    save_together(tmp_path, **runs)
    with pytest.raises(PlanError) as caught:
        resume_together(tmp_path, generator=runs["generator"], judge=runs["critic"])
    assert str(caught.value) == (
        f"runs: {tmp_path}/together-000001 holds generator, critic, and generator, judge go on "
        "from it. Name them as they were saved."
    )
    with pytest.raises(PlanError) as caught:
        save_together(tmp_path, generator=runs["generator"].module)
    assert str(caught.value) == "generator: a Net is not a run. Give what sl.climb returned."
    with pytest.raises(PlanError) as caught:
        save_together(tmp_path, one=runs["critic"], two=runs["critic"])
    assert str(caught.value) == (
        "runs: 2 names for 1 runs. Name each run once: generator=run, critic=other."
    )


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecordError) as caught:
        save_together(tmp_path / "file", **start())
    assert str(caught.value) == (
        f"checkpoint: {tmp_path}/file cannot be written (File exists). "
        "Free some space or name another folder."
    )


def test_a_run_s_name_is_no_path(tmp_path):
    runs = start()
    with pytest.raises(PlanError, match="'../..' cannot be the name of a run. Use letters"):
        save_together(tmp_path, **{"../..": runs["critic"], "generator": runs["generator"]})
    assert not list(tmp_path.iterdir())


def test_one_run_s_folder_and_that_of_several_are_told_apart(tmp_path):
    runs = start()
    save_together(tmp_path / "both", **runs)
    runs["critic"].save(tmp_path / "one")
    with pytest.raises(RecordError, match="both holds runs that were saved together. Use resume_"):
        runs["critic"].resume(tmp_path / "both")
    with pytest.raises(RecordError, match="one holds checkpoints of one run. Use its resume"):
        resume_together(tmp_path / "one", **runs)
