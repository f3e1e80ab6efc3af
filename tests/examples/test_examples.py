"""Every example runs as its readers run it, and does what its first line says."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ranks
from tests.docs.running import inside, rank_of_script, run_here
from tests.docs.site_scripts import load
from tests.soak import soak_after

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_RANKS = ("zero3", "cnn", "gan", "dataloader", "multitask", "char_lm", "huggingface", "lora")


@dataclass(frozen=True)
class Ran:
    """What a script left: its names, and what it printed."""

    names: dict[str, Any]
    output: str

    @property
    def losses(self) -> list[float]:
        """Of the lines that begin with a step or an epoch."""
        found = re.findall(r"^(?:step|epoch)\b.* ([\d.]+)$", self.output, re.MULTILINE)
        return [float(number) for number in found]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Iterator[Any]:
    """Runs an example, once, in a folder that all of them share."""
    folder = tmp_path_factory.mktemp("examples")

    @cache
    def run(name: str) -> Ran:
        shown = StringIO()
        with inside(folder), redirect_stdout(shown):
            names = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return Ran(names, shown.getvalue())

    run.folder = folder
    yield run


def accuracy(output: str) -> float:
    return float(re.search(r"accuracy=([\d.]+)", output)[1])


def test_a_cnn_learns_the_direction_of_stripes(ran):
    assert accuracy(ran("cnn").output) > 0.95
    assert (ran.folder / "runs" / "cnn" / "step-000040").is_dir()


def test_a_language_model_learns_letters_and_writes_some(ran):
    found = ran("char_lm")
    assert found.losses[0] > 4.5 and found.losses[-1] < 2.5
    assert len(found.output.partition("def ")[2]) >= 80


def test_a_hugging_face_model_is_tuned_and_comes_back_as_its_own_files(ran):
    found = ran("huggingface")
    assert accuracy(found.output) > 0.85
    run_next_command(found, ran.folder)
    kind = type(found.names["model"])
    same_state(kind.from_pretrained(ran.folder / "out"), found.names["model"])


def test_adapters_learn_and_the_model_under_them_stays(ran):
    found = ran("lora")
    assert found.losses[-1] < found.losses[0] / 2
    assert "the base is as it was: True" in found.output
    run_next_command(found, ran.folder)
    settings = json.loads((ran.folder / "adapter" / "adapter_config.json").read_text())
    assert settings["r"] == 8 and (ran.folder / "adapter" / "adapter_model.safetensors").exists()


def run_next_command(found: Ran, folder: Path) -> None:
    """What the example's last line says to do next."""
    words = shlex.split(found.output.rpartition("Next: ")[2], comments=True)
    code, output = run_here(words[1:], folder)
    assert code == 0, output


def same_state(one: torch.nn.Module, other: torch.nn.Module) -> None:
    theirs, ours = one.state_dict(), other.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name].cpu()) for name in ours)


def test_a_generator_learns_where_the_real_points_are(ran):
    names = ran("gan").names
    assert (names["points"].mean(0) - names["centre"]).norm() < 0.7
    assert names["generating"].index == names["judging"].index == 150


def test_several_tasks_stop_early_and_the_best_checkpoint_is_loaded(ran):
    found = ran("multitask")
    run, best = found.names["run"], found.names["best"]
    assert found.names["report"].step < 399
    with inside(ran.folder):
        assert best.path.name == f"step-{run.index:06}"
        assert f"{best.value:.3f}" == f"{min(found.losses):.3f}"
    journal = (ran.folder / "runs" / "multitask" / "journal.jsonl").read_text()
    logged = [json.loads(line) for line in journal.splitlines()]
    assert {entry["name"] for entry in logged if entry["kind"] == "logged"} == {
        "size error",
        "sign accuracy",
    }


def test_a_loader_is_used_with_its_sampler_and_its_collate_function(ran):
    found = ran("dataloader")
    assert found.names["run"].position == 2 * 512
    rare = int(found.names["data"].rare.sum())
    assert found.output.endswith(f"rare found: {rare} of {rare}\n")


@pytest.mark.parametrize("name", soak_after(ON_RANKS))
def test_on_two_ranks_the_losses_are_those_of_one_process(name, ran, tmp_path):
    path = str(EXAMPLES / f"{name}.py")
    alone = ran(name).losses
    outputs = ranks.run(rank_of_script, 2, path, str(tmp_path), init=False)
    both = Ran({}, outputs[0][1])
    assert len(alone) > 2 and both.losses == pytest.approx(alone, abs=0.02)


def test_zero3_keeps_half_of_the_state_on_each_of_two_ranks(ran, tmp_path):
    assert "rank 0 of 1 updates 71,562 parameters" in ran("zero3").output
    path = str(EXAMPLES / "zero3.py")
    outputs = ranks.run(rank_of_script, 2, path, str(tmp_path), init=False)
    for rank, (_, output) in enumerate(outputs):
        assert f"rank {rank} of 2 updates {71_562 // 2:,} parameters" in output


def test_a_slurm_job_shows_itself_where_there_is_no_slurm(ran, monkeypatch):
    monkeypatch.setenv("PATH", str(ran.folder))
    script = ran("slurm_job").output
    assert "#SBATCH --nodes=2" in script and "#SBATCH --gpus-per-node=8" in script
    assert f"--on local {EXAMPLES / 'slurm_job.py'} --ranks-per-node 8" in script


def test_a_slurm_job_trains_on_its_ranks(tmp_path):
    path = str(EXAMPLES / "slurm_job.py")
    outputs = ranks.run(rank_of_script, 2, path, str(tmp_path), init=False)
    assert outputs[0][1].startswith("step 19: loss ") and outputs[1][1] == ""
    assert (tmp_path / "runs" / "slurm" / "step-000020").is_dir()


def test_the_cells_of_the_notebook_run_in_their_order(tmp_path):
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = StringIO()
    with inside(tmp_path), redirect_stdout(shown):
        for cell in load("code_lines").code_cells(EXAMPLES / "notebook.ipynb"):
            exec(cell, names)
    names["plt"].close("all")
    assert names["alone"][-1] < names["alone"][0] - 0.2
    assert names["both"] == [pytest.approx(names["alone"], abs=1e-5)] * 2
    assert "largest difference" in shown.getvalue()


def test_the_notebook_is_one_that_jupyter_opens():
    book = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.from_dict(book))
    assert not any(cell.get("outputs") for cell in book["cells"])


def test_the_table_has_every_example_with_its_lines():
    page = (EXAMPLES / "README.md").read_text()
    assert load("code_lines").filled(page) == page, "run: python docs/code_lines.py"
    assert len(re.findall(r"^\| \[\w+\.\w+\]", page, re.MULTILINE)) == 10
