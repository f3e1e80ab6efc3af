"""`stepladder launch`: what would be submitted, what is refused, and a script on this machine."""

import json
import shlex
import sys

import pytest
import yaml

from stepladder.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a recipe and a script, outside of any allocation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "RUN.toml").write_text("[train]\nbatch = 48\n")
    (tmp_path / "job.py").write_text("import os, sys\nprint(os.environ['RANK'], *sys.argv[1:])\n")
    return tmp_path


def dry(capsys, *words):
    code = main(["launch", *words, "--dry-run"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def refused(capsys, *words):
    assert main(["launch", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.rstrip("\n")


def test_here_it_is_the_command_one_would_type(here, capsys):
    words = shlex.split(dry(capsys, "RUN.toml", "--ranks-per-node", "2", "--train.steps", "5"))
    assert words[1:] == [
        "-m", "stepladder.cli.main", "train", "RUN.toml", "--ranks", "2", "--restarts", "3",
        "--train.steps", "5",
    ]  # fmt: skip
    several = ("--nodes", "1:2", "--rendezvous", "h:1", "--run.folder", "runs/a")
    words = shlex.split(dry(capsys, "job.py", *several, "--arguments=--lr 0.1"))
    assert words[3:] == [
        "launch", "--on", "local", "job.py", "--ranks-per-node", "1", "--restarts", "3",
        "--arguments=--lr 0.1", *several,
    ]  # fmt: skip


def test_slurm_is_given_a_script(here, capsys):
    wide = ("--nodes", "2", "--gpus-per-node", "4", "--memory-per-node", "64GiB")
    text = dry(capsys, "--on", "slurm", "RUN.toml", "--run.folder", "runs/a", *wide)
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=a\n#SBATCH --nodes=2\n")
    assert "#SBATCH --gpus-per-node=4\n#SBATCH --mem=65536M\n" in text
    command = f"  {sys.executable} -m stepladder.cli.main train {here}/RUN.toml --ranks 4 "
    assert f"{command}--restarts 3 --elastic --run.folder {here}/runs/a --nodes " in text
    assert not (here / "runs").exists()
    told = json.loads(dry(capsys, "--on", "slurm", "--run.folder", "runs/a", "--json"))
    assert (told["on"], told["folder"]) == ("slurm", f"{here}/runs/a")
    assert told["submits"].startswith("#!/bin/bash\n")


def test_a_sweep_is_every_value_with_every_other(here, capsys):
    axes = ("--sweep", "optimizer.lr=0.1,0.2", "--sweep", "train.seed=0,1,2")
    text = dry(capsys, "--on", "slurm", "RUN.toml", "--run.folder", "runs/a", *axes)
    assert "#SBATCH --array=0-5\n" in text
    assert f"  5) point=(--optimizer.lr 0.2 --train.seed 2 --run.folder {here}/runs/a/5) ;;" in text
    assert '--elastic "${point[@]}"' in text


def test_ssh_is_given_a_line_for_each_machine(here, capsys):
    lines = dry(capsys, "--on", "ssh", "--hosts", "a,b", "job.py", "--run.folder", "r").splitlines()
    assert len(lines) == 2
    remote = shlex.split(lines[1])[-1]
    assert f"cd {here} || exit 80; " in remote and f"--run.folder {here}/r --nodes 2" in remote
    assert f"launch --on local {here}/job.py --ranks-per-node 1" in remote


def test_kubernetes_is_given_manifests_with_the_file_in_them(here, capsys):
    wide = ("--nodes", "2", "--gpus-per-node", "8", "--image", "me/it:1", "--storage", "2TiB")
    text = dry(capsys, "--on", "kubernetes", "RUN.toml", "--run.folder", "runs/a", *wide)
    claim, files, _, job = yaml.safe_load_all(text)
    assert claim["spec"]["resources"]["requests"]["storage"] == "2097152Mi"
    assert files["data"] == {"RUN.toml": "[train]\nbatch = 48\n"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:5] == [
        "python", "-m", "stepladder.cli.main", "train", "/etc/stepladder/RUN.toml"
    ]  # fmt: skip
    assert "/checkpoints/a" in container["command"] and "8" in container["command"]


def test_a_files_name_is_one_that_a_config_map_takes(here, capsys):
    (here / "my run.toml").write_text("[train]\nbatch = 48\n")
    text = dry(capsys, "--on", "kubernetes", "my run.toml", "--image", "me/it:1")
    _, files, _, job = yaml.safe_load_all(text)
    assert list(files["data"]) == ["my-run.toml"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert "/etc/stepladder/my-run.toml" in container["command"]


def test_ray_is_given_a_script(here, capsys):
    text = dry(capsys, "--on", "ray", "RUN.toml", "--nodes", "2", "--run.folder", "runs/a")
    assert "num_workers=2," in text and f"'folder': '{here}/runs/a'" in text
    assert f"'{here}/RUN.toml', '--run.folder', '{here}/runs/a', '--elastic'" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--on ssh --partition x",
         "partition: is no option of --on ssh. Use it with --on slurm."),
        ("--on ray --detach",
         "detach: is no option of --on ray. Use it with --on slurm or kubernetes."),
        ("--on ssh", "hosts: missing. Name the machines: --hosts a,b."),
        ("--on ssh --hosts a,b --nodes 4",
         "nodes: 4 machines, and --hosts names 2. Leave --nodes out, or name as many as may come."),
        ("--on kubernetes", "image: missing: pods run what an image holds. Name one with "
         "stepladder in it: --image REPOSITORY/IT."),
        ("--on kubernetes --image x --kind jobs", "kind: 'jobs' is not one. Did you mean 'job'?"),
        ("--on kubernetes none.toml --image x",
         "run file: none.toml cannot be read (No such file or directory). Check its name."),
        ("--on slurm --nodes 0", "nodes: '0' is not a number of machines. Write --nodes 2, or "
         "--nodes 1:4."),
        ("--on slurm --ranks-per-node 0", "ranks-per-node: 0 is too few. Use 1 or more."),
        ("--on slurm --memory-per-node lots", "memory-per-node: 'lots' is not an amount of memory. "
         "Write --memory-per-node 64GiB."),
        ("--on slurm --cpus-per-node 0", "cpus-per-node: 0 is too few. Use 1 or more."),
        ("--on slurm --time 90m", "time: '90m' is not a time of Slurm's. "
         "Write minutes (90), 1:30:00, or days and hours (2-12)."),
        ("job.py --on slurm --arguments=\"'x\"",
         'arguments: "\'x" cannot be read (no closing quotation). Close every quote.'),
        ("--on ssh --hosts a,b --ssh \"'x\"",
         'ssh: "\'x" cannot be read (no closing quotation). Close every quote.'),
        ("--on ssh --hosts a,b --rendezvous a:x",
         "rendezvous: 'a:x' is not an address where machines meet. Write --rendezvous HOST:29400, "
         "the same on every machine; HOST is one of them."),
        ("--nodes 2 --dry-run", "rendezvous: missing, while --nodes is given. "
         "Write both on every machine: --nodes 1:2 --rendezvous HOST:29400."),
        ("RUN.toml --plan tensor=2 --dry-run",
         "layout: is for 2 ranks (tensor=2), and there is 1 rank. "
         "Use 2, or leave one axis open with -1."),
        ("--on slurm --sweep lr", "sweep: 'lr' is not a key and its values. "
         "Write --sweep optimizer.lr=1e-3,3e-3."),
        ("--on slurm --sweep train.stps=1,2",
         "train.stps: is not a setting. Did you mean 'steps'?"),
        ("none.py", "script: there is no none.py. Check its name."),
        ("job.py --plan fp32", "plan: is not for a script: job.py has its own. "
         "Hand it over with --arguments."),
        ("job.py --train.steps 5", "train.steps: is a key of recipes, and job.py is a script. "
         "Hand it over with --arguments."),
        ("RUN.toml --arguments=x",
         "arguments: are for a script, and this is a recipe. Set keys instead: --train.steps 50."),
        ("--on slurm RUN.toml --plan tensor=2",
         "layout: is for 2 ranks (tensor=2), and there is 1 rank. "
         "Use 2, or leave one axis open with -1."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line_before_anything_is_submitted(here, capsys, words, said):
    assert refused(capsys, *shlex.split(words)) == said


def test_a_batch_that_does_not_divide_is_said_before_it_waits_in_a_queue(here, capsys):
    said = refused(capsys, "--on", "slurm", "RUN.toml", "--nodes", "5", "--plan", "fp32")
    assert said.startswith("batch.sequences: 48 does not divide") and "\n" not in said


def test_a_folder_that_holds_a_run_is_not_gone_on_with_unasked(here, capsys):
    (here / "old").mkdir()
    (here / "old" / "latest").write_text("step-000001")
    said = refused(capsys, "--on", "slurm", "--run.folder", "old")
    assert said.startswith("run.folder: old holds a run already. Add --run.resume true")
    assert "--run.resume true" in dry(
        capsys, "--on", "slurm", "--run.folder", "old", "--run.resume", "true"
    )


def test_a_script_runs_on_this_machines_ranks_with_its_arguments(here, capsys):
    words = ["job.py", "--ranks-per-node", "2", "--run.folder", "runs/a", "--arguments=--lr 0.1"]
    assert main(["launch", *words]) == 0
    said = sorted(capsys.readouterr().out.splitlines())
    assert said == ["0 --lr 0.1", "[rank 1] 1 --lr 0.1"]
    assert (here / "runs" / "a" / "ranks" / "rank-1.out").read_text() == "1 --lr 0.1\n"
