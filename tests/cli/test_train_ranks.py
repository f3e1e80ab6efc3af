"""`stepladder train` on several ranks, however they are started: one run, one voice, one end."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from stepladder.cli.main import main
from stepladder.record import read_journal
from tests.cli.commands.test_train import TINY
from tests.docs.running import run_script
from tests.soak import soak_after

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(folder, *words):
    return main(["train", *TINY, "--run.folder", str(folder), *words])


def losses(folder):
    return [entry["loss"] for entry in read_journal(folder, kind="step")]


@pytest.fixture(params=soak_after(["forked", "new interpreters"]))
def processes(request):
    return request.param == "forked" or request.getfixturevalue("fresh_python")


@pytest.mark.usefixtures("processes")
def test_two_ranks_are_one_run_with_the_losses_of_one_rank(tmp_path, capsys):
    words = ("--train.steps", "5", "--train.evaluate_every", "2", "--plan", "fp32")
    assert train(tmp_path / "two", "--ranks", "2", *words) == 0
    shown = capsys.readouterr().out
    assert train(tmp_path / "one", *words) == 0
    capsys.readouterr()
    lines = shown.splitlines()
    assert lines[0] == "The plan names no layout: data parallel on 2 ranks, replicate=2."
    assert shown.count("step      0  loss") == shown.count("A sample after") == 1
    assert "[rank 1]" not in shown
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    kinds = [entry["kind"] for entry in read_journal(tmp_path / "two")]
    assert kinds.count("start") == kinds.count("summary") == 1
    assert (tmp_path / "two" / "latest").read_text().strip() == "step-000005"
    assert (tmp_path / "two" / "loss.png").exists()
    assert "step      0  loss" in (tmp_path / "two" / "ranks" / "rank-0.out").read_text()
    assert (tmp_path / "two" / "ranks" / "rank-1.out").read_text() == ""


@pytest.mark.soak
def test_torchrun_starts_the_same_run_and_json_is_all_it_prints(tmp_path):
    words = ["train", *TINY, "--train.steps", "3", "--json"]
    ran = subprocess.run(
        [*TORCHRUN, "-m", "stepladder.cli.main", *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert figures["steps"] == 3
    (folder,) = (tmp_path / "runs").iterdir()  # one folder, though each rank read the clock
    assert "replicate=2" in (folder / "plan.toml").read_text().replace(" ", "")


REFUSED = {  # words: how every line begins
    ("--ranks", "2", "--plan", "fp32 tensor=3"): (
        "layout: is for 3 ranks (tensor=3), and there are 2 ranks.",
        "layout.tensor: 3 ways cannot cut ",
        "layout.tensor: 3 ways cannot cut ",
        "layout.tensor: 3 ways cannot cut ",
        "layout.tensor: 16 tokens do not divide by tensor x context = 3",
    ),
    ("--ranks", "3"): ("batch.sequences: 4 does not divide by 3",),
    ("--ranks", "4", "--plan", "ddp replicate=2"): ("layout: is for 2 ranks",),
    ("--ranks", "0"): ("ranks: 0 is too few. Use 1 or more.",),
    ("--ranks", "4:2"): ("ranks: '4:2' is not a whole number. Write --ranks 2.",),
    ("--restarts", "-1"): ("restarts: '-1' is not a whole number.",),
    ("--nodes", "2"): ("rendezvous: missing, while --nodes is given. Write both",),
    ("--rendezvous", "h:1"): ("nodes: missing, while --rendezvous is given. Write both",),
    ("--nodes", "4:2", "--rendezvous", "h:1"): ("nodes: at least 4 and at most 2 machines",),
    ("--nodes", "1:2", "--rendezvous", "h:1", "--plan", "tensor=2"): (
        "rendezvous: no machine is known as 'h'",
    ),
    ("--nodes", "2", "--rendezvous", "h:1", "--plan", "fp32"): (  # each would say the layout
        "rendezvous: no machine is known as 'h'",
    ),
    ("--nodes", "1:9", "--rendezvous", "h:1"): (
        "ranks: no layout of 5 keeps the global batch of 4",
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_so_many_ranks_is_refused_before_anything_starts(tmp_path, capsys, words):
    assert train(tmp_path / "run", *words) == 2
    said = capsys.readouterr()
    lines, begins = said.err.splitlines(), REFUSED[words]
    assert len(lines) == len(begins)
    assert all(line.startswith(start) for line, start in zip(lines, begins))
    assert said.out == "" and not (tmp_path / "run").exists()


def test_ranks_inside_a_launched_process_are_refused(tmp_path, capsys, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "x"}
    for name, value in {**place, "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert train(tmp_path / "run", "--ranks", "2") == 2
    assert capsys.readouterr().err == (
        "ranks: 2 asked for in a process that is one of 2 already. "
        "Leave --ranks out; the launcher has started them.\n"
    )


def test_a_mistake_that_only_the_ranks_find_is_one_line(tmp_path, capsys):
    assert train(tmp_path / "run", "--ranks", "2", "--model.name", "gtp2") == 2
    said = capsys.readouterr().err
    assert said.removeprefix("[rank 0] ").removeprefix("[rank 1] ") == (
        "model: 'gtp2' is not a known model. Did you mean 'gpt2'?\n"
    )


def start_long(folder, *words):
    """A launcher and its two ranks, once they are training."""
    command = [sys.executable, "-m", "stepladder.cli.main", "train", *TINY, "--ranks", "2"]
    launcher = subprocess.Popen(
        [*command, "--run.folder", str(folder), "--train.steps", "1000000", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    deadline = time.monotonic() + 200
    journal = folder / "journal.jsonl"
    while not (journal.exists() and '"kind":"step"' in journal.read_text()):
        assert time.monotonic() < deadline and launcher.poll() is None
        time.sleep(0.1)
    children = psutil.Process(launcher.pid).children()
    ranks = sorted(children, key=lambda child: child.pid)[-2:]  # started in this order
    return launcher, ranks


@pytest.mark.soak
def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path, capsys):
    launcher, ranks = start_long(tmp_path / "run")
    ranks[1].send_signal(signal.SIGTERM)
    out, error = launcher.communicate(timeout=120)
    assert launcher.returncode == 143, error
    assert "SIGTERM: saving at step" in out and "Traceback" not in error
    assert not any(child.is_running() for child in ranks)
    done = int((tmp_path / "run" / "latest").read_text().removeprefix("step-"))
    assert f"saving at step {done} and" in out
    again = ("--train.steps", str(done + 1), "--run.resume", "true", "--json")
    assert train(tmp_path / "run", *again) == 0  # and one rank goes on from what two saved
    assert json.loads(capsys.readouterr().out)["steps"] == done + 1


def test_a_rank_that_dies_is_the_first_line_and_nobody_stays(tmp_path):
    launcher, ranks = start_long(tmp_path / "run", "--restarts", "0")
    ranks[1].kill()
    _, error = launcher.communicate(timeout=120)
    assert launcher.returncode == 1
    told = [line for line in error.splitlines() if "Warning" not in line and line[:1] != " "]
    assert told[0].startswith("[rank 1] ended by SIGKILL"), error
    assert "Traceback" not in error
    assert not any(child.is_running() for child in ranks)


def test_ranks_with_other_recipes_say_in_what(tmp_path):
    script = tmp_path / "start.py"
    script.write_text(
        "import os, sys\nfrom stepladder.cli.main import main\n"
        "batch = '8' if os.environ['RANK'] == '1' else '4'\n"
        f"raise SystemExit(main({['train', *TINY]!r} + ['--train.batch', batch]))\n"
    )
    ran = subprocess.run(
        [*TORCHRUN, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=240
    )
    assert ran.returncode != 0
    # Each says so, unless torchrun has ended it by then: it does with all once the first has left.
    assert {line for line in ran.stderr.splitlines() if line.startswith("world: ")} == {
        "world: not the same on all ranks: rank 1 in train.batch ('8' against '4'), compared "
        "with rank 0. Start every rank with the same files, versions and options."
    }


SCRIPT = """
import torch, stepladder as sl
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
rows = torch.randn(16, 4), torch.randint(3, (16,))
run = sl.climb(model, loss="cross_entropy", optimizer="sgd lr=0.1", plan="auto", device="cpu")
with run.batches(torch.utils.data.TensorDataset(*rows), size=8) as feed:
    losses = [run.step(batch).loss for batch, _ in zip(feed, range(4))]
if run.world.is_rank_zero:
    print(losses)
"""


def test_a_users_script_runs_alone_and_under_torchrun_unchanged(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    _, alone = run_script(script.name, tmp_path)
    started = [*TORCHRUN, str(script)]
    ran = subprocess.run(started, capture_output=True, text=True, check=True, timeout=240)
    alone, together = json.loads(alone), json.loads(ran.stdout)
    assert len(alone) == 4
    assert together == pytest.approx(alone, rel=1e-5)


def test_every_rule_a_plan_breaks_is_told_before_any_rank_is_started(tmp_path, capsys):
    words = ("--plan", "fp32 pipeline=2 tensor=3 compress=bf16 offload=parameters micro=4")
    assert train(tmp_path / "run", "--ranks", "6", *words) == 2
    said = capsys.readouterr().err.splitlines()
    fields = [line.partition(":")[0] for line in said]
    assert fields.count("layout.tensor") >= 2  # heads, and the sequence it slices
    assert "compress" in fields and "offload" in fields
    assert not (tmp_path / "run").exists()


def test_machines_that_meet_need_a_folder_of_one_name(capsys):
    assert main(["train", *TINY, "--nodes", "1:2", "--rendezvous", "h:1"]) == 2
    assert capsys.readouterr().err == (
        "run.folder: has no name, and machines that meet need the same one. "
        "Add --run.folder DIR, a folder that every machine sees.\n"
    )
