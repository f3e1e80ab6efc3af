"""`sl.launch` submits what `stepladder launch` submits."""

import pytest

import stepladder as sl
from stepladder.cli.main import main
from stepladder.errors import PlanError


def test_a_call_and_the_command_would_submit_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = ["--run.folder", str(tmp_path / "run")]
    words = ["--nodes", "2", "--gpus-per-node", "4", "--plan", "bf16 zero3", "--time", "1:00:00"]
    assert main(["launch", "--on", "slurm", *words, *folder, "--dry-run"]) == 0
    said = sl.launch(
        on="slurm", nodes=2, gpus_per_node=4, plan="bf16 zero3", time="1:00:00",
        settings=folder, dry_run=True,
    )  # fmt: skip
    assert said.text == capsys.readouterr().out and said.exit_code is None
    assert (said.on, said.folder) == ("slurm", str(tmp_path / "run"))


def test_here_a_script_and_its_arguments_are_a_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("")
    said = sl.launch("own.py", ranks_per_node=2, arguments=["--lr", "0.1"], dry_run=True)
    assert "launch --on local own.py --ranks-per-node 2" in said.text
    assert said.text.endswith("'--arguments=--lr 0.1'\n")


def test_a_place_nobody_knows_and_an_option_of_another_are_refused():
    with pytest.raises(PlanError, match="on: 'slurmm' is not a place to start a run"):
        sl.launch(on="slurmm", dry_run=True)
    with pytest.raises(PlanError, match="partition: is no option of --on ray"):
        sl.launch(on="ray", partition="long", dry_run=True)
