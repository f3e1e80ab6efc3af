"""The lab command as a learner uses it: list, start, edit wrongly, check, fix, check."""

import json
import os
import subprocess
import sys

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
    code, said = lab("start", "memory")
    assert code == 2 and said == (
        "file: memory.py is there already. --force overwrites it; or name another file.\n"
    )
    code, right = lab("solution", "memory")
    assert code == 0
    mine = tmp_path / "memory.py"
    mine.write_text(right.replace("        loss = loss * len(x) / num_rows\n", ""))
    code, said = lab("check", "memory")
    assert code == 1
    assert "your loss is 4 × too large: divide by the accumulation steps." in said
    assert "Traceback" not in said
    mine.write_text(right)
    code, said = lab("check", "memory")
    assert code == 0, said
    assert said.endswith("Passed. Done properly by stepladder.climb.\n")


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
    capsys.readouterr()
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
