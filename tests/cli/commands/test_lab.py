"""The lab command as a learner uses it: list, start, edit wrongly, check, fix, check."""

import json
import os
import subprocess
import sys

import pytest

from stepladder.cli.main import main


def command(folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stepladder.cli.main", "lab", *words],
        cwd=folder, capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_bare_lab_lists_every_course(capsys):
    assert main(["lab"]) == 0
    said = capsys.readouterr().out
    for words in ("Foundations", "First course", "Second course", "loss-scale", "ddp"):
        assert words in said


def test_the_list_is_also_json(capsys):
    assert main(["lab", "--json"]) == 0
    courses = json.loads(capsys.readouterr().out)["courses"]
    labs = [lab for course in courses for lab in course["labs"]]
    assert len(labs) >= 25
    assert {"name", "title", "seconds", "library", "rungs"} <= labs[0].keys()


def test_a_learner_starts_errs_and_passes(tmp_path):
    """Through the real command, once: a new interpreter, a file in the working folder."""

    def lab(*words: str) -> tuple[int, str]:
        done = command(tmp_path, *words)
        return done.returncode, done.stdout + done.stderr

    code, said = lab("start", "memory")
    assert code == 0 and "Written: memory.py" in said and "Claim: gradients of four" in said
    assert "Predict first: Six blocks" in said and "1. line" in said
    mine = tmp_path / "memory.py"
    code, right = lab("solution", "memory")
    mine.write_text(right.replace("        loss = loss * len(x) / num_rows\n", ""))
    code, said = lab("check", "memory")
    assert code == 1
    assert "your loss is 4 × too large: divide by the accumulation steps." in said
    assert "Traceback" not in said and "'stepladder lab hint memory' helps" in said
    mine.write_text(right)
    code, said = lab("check", "memory")
    assert code == 0, said
    assert said.endswith("by stepladder.climb. Next: 'stepladder lab next'.\n")


def test_a_check_is_also_json_and_what_the_file_prints_goes_elsewhere(tmp_path, monkeypatch):
    """In a process of its own: the server that forks checks keeps the streams it was born with."""
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "start", "views", "mine.py"]) == 0
    path = tmp_path / "mine.py"
    path.write_text(path.read_text() + "\nprint('a word of mine')\n")
    done = command(tmp_path, "check", "views", "mine.py", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["passed"] is False and found["findings"][0]["passed"] is False
    assert len(found["left"]) == 5
    assert "a word of mine" in done.stderr


def test_start_overwrites_only_when_forced_and_speaks_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views.py").write_text("mine")
    assert main(["lab", "start", "views"]) == 2
    assert (tmp_path / "views.py").read_text() == "mine"
    assert "file: views.py is there already" in capsys.readouterr().err
    assert main(["lab", "start", "views", "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == "views.py" and found["check"] == "stepladder lab check views"
    assert "TODO" in (tmp_path / "views.py").read_text()


def test_run_prints_the_numbers_and_draws_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "run", "tf32", "--plot", "errors.png"]) == 0
    said = capsys.readouterr().out
    assert "three tf32" in said and "Picture: errors.png" in said
    assert (tmp_path / "errors.png").stat().st_size > 5000
    assert main(["lab", "run", "views", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["extra bytes"] == 0 and found["plot"] is None


def test_a_users_mistake_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cases = {
        ("start", "view"): "lab: there is no lab called 'view'. Did you mean 'views'?",
        ("check",): "lab: 'check' needs the name of a lab. 'stepladder lab' lists them.",
        ("check", "views"): "file: views.py is not here. 'stepladder lab start views' writes it.",
        ("start", "views", "no/where.py"): (
            "file: no/where.py cannot be written (No such file or directory). Name another file."
        ),
        ("check", "views", "--limit", "0"): "limit: 0 seconds is no time. Give 1 or more.",
    }
    for words, wanted in cases.items():
        assert main(["lab", *words]) == 2
        assert capsys.readouterr().err.strip() == wanted


@pytest.fixture
def learner(tmp_path, monkeypatch, capsys):
    """A learner's folder and notebook; what a word of the command prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("stepladder.labs.grading.own_session.METHOD", "forkserver")

    def lab(*words: str, code: int = 0) -> str:
        assert main(["lab", *words]) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    return lab


@pytest.mark.soak
def test_a_number_is_predicted_and_solutions_race(learner, tmp_path):
    assert "Predicted: 12. How many bytes does it cost" in learner("predict", "views", "12")
    learner("start", "views")
    assert learner("race", "views", code=2) == (
        "race: views.py does not pass its checks yet. "
        "'stepladder lab check views views.py' says why.\n"
    )
    (tmp_path / "views.py").write_text(learner("solution", "views"))
    found = json.loads(learner("check", "views", "--json"))
    assert found["passed"] and found["predicted"] == "Predicted 12, measured 48: 75% off."
    found = json.loads(learner("race", "views", "--name", "me", "--by", "error", "--json"))
    assert [row["who"] for row in found["board"]] == ["me", "stepladder"]
    assert all(row["seconds"] > 0 for row in found["board"])
    page = json.loads(learner("--json"))["progress"]["views"]
    assert page["passed"] == page["of"] > 0 and page["predicted"] == 12
    assert json.loads(learner("next", "--json")) == {
        "lab": "devices",  # as the course goes on, not as the list does
        "command": "stepladder lab start devices",
    }
    assert "stepladder lab start devices" in learner("next")
    assert "was measured before: 48" in learner("run", "views", "--predict", "48", code=2)


def test_hints_come_one_at_a_time_for_what_is_left(learner, tmp_path):
    first = json.loads(learner("hint", "views", "--json"))
    assert first["part"] == 1 and first["name"] == "position" and len(first["hints"]) == 1
    said = learner("hint", "views")
    assert "Part 1 of 5, position" in said and "2. " in said and "1 more." in said
    learner("start", "views")
    text = (tmp_path / "views.py").read_text()
    (tmp_path / "views.py").write_text(text.replace("# TODO: Find the", "# Find the"))
    assert json.loads(learner("hint", "views", "--json"))["name"] == "transposed"
    assert json.loads(learner("hint", "views", "--part", "5", "--json"))["name"] == "held_bytes"
    assert learner("hint", "views", "--part", "6", code=2) == (
        "part: views has no part 6. Use 1 to 5.\n"
    )
    for _ in range(4):
        said = learner("hint", "views", "--part", "3")
    assert "That is all on windows." in said
    (tmp_path / "views.py").write_text("")
    assert json.loads(learner("hint", "views", "--json"))["part"] == 1


def test_assistants_are_told_to_teach_and_a_folders_own_words_stay(learner, tmp_path):
    assert "AGENTS.md, which asks AI assistants to teach" in learner("start", "views")
    assert "Teach, do not solve" in (tmp_path / "AGENTS.md").read_text()
    (tmp_path / "AGENTS.md").write_text("our own")
    assert "AGENTS.md" not in learner("start", "tf32")
    assert (tmp_path / "AGENTS.md").read_text() == "our own"


def test_an_adapter_is_checked_in_place_of_the_starter(learner, tmp_path):
    learner("start", "views", "--adapter")
    assert "def" not in (text := (tmp_path / "views_adapter.py").read_text())
    assert "# position(index: Sequence[int], strides: Sequence[int], offset: int) -> int" in text
    (tmp_path / "views.py").write_text(learner("solution", "views"))
    assert learner("check", "views").endswith("Next: 'stepladder lab next'.\n")
    (tmp_path / "views_adapter.py").write_text("")
    assert "has no 'position'. Write it, or give" in learner("check", "views", code=1)


@pytest.mark.soak  # each of its parts is in the gate: the run, the drawing, the command
def test_the_picture_of_a_check_is_of_the_learners_own_run(learner, tmp_path):
    text = learner("solution", "ring").replace("num_ranks: int = 4", "num_ranks: int = 2")
    (tmp_path / "ring.py").write_text(text)
    found = json.loads(learner("check", "ring", "--plot", "own.png", "--json"))
    assert found["picture"] == "Picture of your run: own.png"
    assert (tmp_path / "own.png").stat().st_size > 20_000
    (tmp_path / "ring.py").write_text(f"{text}\n\ndef measure():\n    raise ValueError('no')\n")
    found = json.loads(learner("check", "ring", "--plot", "own.png", "--json"))
    assert found["picture"] == "No picture: ValueError: no."


def test_a_prediction_is_a_number(capsys):
    assert main(["lab", "predict", "views"]) == 2
    assert capsys.readouterr().err.startswith("predict: was given no number. How many bytes")
    assert main(["lab", "predict", "views", "much"]) == 2
    assert "was given 'much', which is no number" in capsys.readouterr().err
