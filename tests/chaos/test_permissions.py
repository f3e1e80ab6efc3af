"""What a user may not read or write is said in a line, and nothing is lost or begun anew.

Root may do anything, so the commands are run by a user of a namespace of its own: one without a
name, a home or rights, to whom root's files belong.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.cli.main import main

from .victim import TINY, environment

pytestmark = pytest.mark.timeout(900)  # ten seconds alone, minutes on a crowded machine
STRANGER = ["unshare", "--user", "--map-user=4242", "--map-group=4242"]
NEWEST = "step-000004"


def train(*words: str) -> list[str]:
    return ["train", *TINY, "--train.steps", "4", "--train.save_every", "2", *words]


def resume(folder: Path, *words: str) -> list[str]:
    return train("--train.steps", "6", "--run.folder", str(folder), *(words or ["--elastic"]))


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs of which something is closed to their user."""
    if os.geteuid() or not shutil.which(STRANGER[0]):
        pytest.skip("only root, with util-linux, can become another user")
    tried = subprocess.run([*STRANGER, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"nobody else can be become here: {tried.stderr.strip()}")
    root = tmp_path_factory.mktemp("rights")
    assert main(train("--run.folder", str(root / "run"))) == 0
    closed = {
        "theirs": 0o555, "theirs/journal.jsonl": 0o444, "theirs/journal.lock": 0o444,
        f"file/{NEWEST}/model-00000.safetensors": 0, f"step/{NEWEST}": 0, "unseen": 0o333,
        "shut": 0, "journal/journal.jsonl": 0,
    }  # fmt: skip
    for name in {name.partition("/")[0] for name in closed}:
        shutil.copytree(root / "run", root / name)
    for folder in ("full", "data"):
        (root / folder).mkdir()
    (root / "RUN.toml").write_text("[train]\nsteps = 2\n")
    closed |= {"full": 0o555, "data": 0, "RUN.toml": 0}
    for name, mode in closed.items():
        (root / name).chmod(mode)
    yield root
    for name in closed:
        (root / name).chmod(0o755)


def commands(root: Path) -> dict[str, tuple[list[str], int, str]]:
    """Each with what it ends with, and what it says of the root's folder."""
    refused = "(Permission denied)."
    unread = f"may not be read by this user {refused} Have its owner allow it (chmod a+rX), or "
    reach = f"is out of this user's reach {refused} Have its owner allow it, or name another."
    return {
        "no folder": (train("--run.folder", f"{root}/full/x"), 2,
                      f"run folder: ROOT/full/x cannot be written {refused}"),
        "another's": (resume(root / "theirs", "--run.resume", "true"), 2,
                      f"run folder: ROOT/theirs cannot be written {refused}"),
        "file": (resume(root / "file"), 2,
                 f"checkpoint: ROOT/file/{NEWEST}/model-00000.safetensors {unread}"),
        "step": (resume(root / "step"), 2,
                 f"checkpoint: ROOT/step/{NEWEST}/manifest.json {unread}"),
        "unseen": (resume(root / "unseen"), 2, f"checkpoint: ROOT/unseen {unread}"),
        "shut": (resume(root / "shut", "--run.resume", "true"), 2,
                 f"path: 'ROOT/shut/run.toml' {reach}"),
        "data": (train("--run.folder", f"{root}/a", "--data.source", f"{root}/data"), 2,
                 f"path: 'ROOT/data/dataset_dict.json' {reach}"),
        "no such user": (train("--run.folder", f"{root}/b", "--data.source", "~nobody-there/x"), 2,
                         "path: one begins with '~', and that user has no home here. Write it in "),
        "recipe": (["train", f"{root}/RUN.toml"], 2,
                   f"run file: ROOT/RUN.toml cannot be read {refused} Have its owner allow it."),
        "inspect": (["checkpoint", "inspect", f"{root}/step/{NEWEST}"], 2,
                    f"checkpoint: ROOT/step/{NEWEST}/manifest.json {unread}"),
        "watch": (["watch", f"{root}/journal", "--port", "0"], 2,
                  f"path: 'ROOT/journal/journal.jsonl' {reach}"),
        "report": (["report", f"{root}/theirs"], 2,
                   "run folder: ROOT/theirs may not be written by this user, and the page would "),
        "verify": (["checkpoint", "verify", f"{root}/step"], 1, ""),
        "verify another's": (["checkpoint", "verify", f"{root}/theirs"], 0, ""),
        "no home": (train("--run.folder", f"{root}/new"), 0, ""),
    }  # fmt: skip


@pytest.fixture(scope="module")
def answers(place):
    """What each of them came to, run one after the other by a user without rights."""
    there, asked = contents(place), commands(place)
    lines = [json.dumps(words) for words, _, _ in asked.values()]
    (place / "words").write_text("\n".join(lines))
    without = {"HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "MPLCONFIGDIR"}
    done = subprocess.run(
        [*STRANGER, sys.executable, "-m", "tests.chaos.permissions", str(place / "words")],
        env={name: value for name, value in environment().items() if name not in without},
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))
    return found, {name for name in contents(place) - there if not name.startswith("new")}


@pytest.mark.parametrize("name", commands(Path("ROOT")))
def test_what_is_closed_to_a_user_is_one_line(place, answers, name):
    _, code, said = commands(place)[name]
    found = answers[0][name]
    lines = [line.replace(str(place), "ROOT") for line in found["lines"]]
    assert found["code"] == code, lines
    assert len(lines) == (code == 2) and "".join(lines).startswith(said), lines


def test_none_of_it_left_a_file_or_took_one(place, answers):
    assert answers[1] <= {"words", "a", "b", "a/journal.lock"}
    for folder in ("file", "step", "unseen", "theirs"):
        assert contents(place / folder) >= contents(place / "run")
