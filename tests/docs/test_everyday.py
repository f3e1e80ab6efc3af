"""The page of everyday needs: our programs train, the others' too, and the lines are counted."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import ranks

from .blocks import ROOT
from .everyday_blocks import PAGE, given, setting_up
from .everyday_blocks import code_lines as lines
from .running import inside

NEEDS = list(lines.our_programs())
TRAINED = {"A GAN": "generating", "Two ranks from a notebook": "losses"}  # else: run


def ran(need: str, folder: str) -> tuple[dict[str, Any], str]:
    """The names that a program leaves, and what it printed."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = io.StringIO()
    with inside(Path(folder)), redirect_stdout(shown):
        for code in [given(), *setting_up(need), lines.our_programs()[need]]:
            exec(compile(code, need, "exec"), names)
    return names, shown.getvalue()


def on_rank(need: str, folder: str) -> tuple[int, str]:
    names, output = ran(need, folder)
    return names["run"].index, output


def is_for_ranks(need: str) -> bool:
    return need in ("Several GPUs", "Full sharding (ZeRO-3, FSDP)")


@pytest.mark.parametrize("need", NEEDS)
def test_our_program_trains(need: str, tmp_path: Path) -> None:
    if is_for_ranks(need):
        found = ranks.run(on_rank, 2, need, str(tmp_path), init=False)
        assert found[0] == found[1] and found[0][0] == 16
        return
    names, output = ran(need, str(tmp_path))
    trained = names[TRAINED.get(need, "run")]
    if need == "Two ranks from a notebook":
        assert len(trained) == 2 and len(trained[0]) == 16 and trained[0] == trained[1]
    else:
        assert trained.index >= 4
    assert check(need, names, output, tmp_path)


def check(need: str, names: dict[str, Any], output: str, folder: Path) -> bool:
    """What a need is about, where the steps alone do not show it."""
    facts = {
        "Validate while training": lambda: len(output.splitlines()) == 2,
        "Metrics": lambda: "accuracy=" in output,
        "Predictions": lambda: names["classes"].shape == (64,),
        "Mixed precision": lambda: names["run"].plan.precision.work == "bfloat16",
        "Gradient accumulation": lambda: names["run"].plan.batch.micro_batches == 4,
        "A learning rate with warm-up": lambda: (
            len({x.split()[2] for x in output.splitlines()}) > 8
        ),
        "An optimizer of torch, or your own": lambda: isinstance(
            names["run"].optimizer, torch.optim.RMSprop
        ),
        "Save, and resume": lambda: (folder / "runs/everyday/step-000016").is_dir(),
        "The best checkpoint": lambda: len(list((folder / "runs/best").glob("step-*"))) == 1,
        "Early stopping": lambda: names["stop"].best < 2,
        "Values of your own in TensorBoard": lambda: any(folder.rglob("events.out.tfevents*")),
        "LoRA": lambda: any(folder.rglob("step-000004")),
        "Where the time of a step goes": lambda: "ms under the profiler: " in output,
    }
    return facts.get(need, lambda: True)()


@pytest.mark.parametrize("peer", lines.PEER_FILES.values())
def test_a_peer_has_the_same_needs_in_the_same_order(peer: str) -> None:
    found = list(lines.peer_programs(peer))
    assert found == [need for need in NEEDS if need in found]
    assert set(NEEDS) - set(found) <= {"A GAN"}
    for need, code in lines.peer_programs(peer).items():
        ast.parse(code, need)


@pytest.mark.soak
@pytest.mark.parametrize("peer", lines.PEER_FILES.values())
def test_a_peers_programs_run(peer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.peer_programs", peer],
        cwd=ROOT, capture_output=True, text=True, timeout=230,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_table_is_counted_and_we_are_as_short_in_20_of_25() -> None:
    page = PAGE.read_text()
    assert lines.filled(page) == page, "run: python docs/code_lines.py"
    short, needs = map(int, re.search(r"In (\d+) of (\d+) needs", page).groups())
    assert needs == 25 and short >= 20


def test_our_programs_are_formatted_as_theirs_are(tmp_path: Path) -> None:
    for number, code in enumerate(lines.our_programs().values()):
        (tmp_path / f"{number}.py").write_text(code)
    command = [sys.executable, "-m", "ruff", "format", "--check", "--line-length", "100"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
