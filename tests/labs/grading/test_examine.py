"""Whatever a learner's file does becomes a line that helps, and it never takes us along."""

import time
from pathlib import Path

import pytest

from stepladder.labs import judge, solution
from stepladder.labs.catalogue.courses import find_lab
from stepladder.labs.grading.finding import Finding
from stepladder.labs.grading.grade import attempt
from stepladder.labs.grading.processor_time import Budget
from stepladder.labs.lab import Lab

LAB: Lab = find_lab("views")
RING: Lab = find_lab("ring")
GOOD = solution(LAB.lesson.read_text())
BODY = "return offset + sum(i * stride for i, stride in zip(index, strides))"


def first_failure(folder, text: str, limit_seconds: float = 60) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    found = judge(LAB, path, limit_seconds=limit_seconds)
    return next(finding.message for finding in found if not finding.passed)


def changed(body: str) -> str:
    assert GOOD.count(BODY) == 1
    return GOOD.replace(BODY, body)


def test_an_error_shows_the_learners_lines_and_none_of_ours(tmp_path):
    said = first_failure(tmp_path, changed("return index[99]"))
    number = GOOD[: GOOD.index(BODY)].count("\n") + 1
    assert said == f"line {number}: return index[99]\nIndexError: tuple index out of range"


def test_what_a_check_returns_is_shown_when_it_passes(tmp_path):
    passed = attempt("A claim.", lambda: "9 of 10 steps", tmp_path)
    assert passed == Finding("A claim.", True, "9 of 10 steps")
    assert attempt("A claim.", lambda: None, tmp_path) == Finding("A claim.", True)


def test_a_loop_without_end_is_stopped_and_its_line_named(tmp_path):
    loop = "while True:\n        pass"
    said = first_failure(tmp_path, changed(loop), limit_seconds=1)
    assert "still running when its processor time was over" in said
    assert "pass" in said or "while True" in said


def test_a_loop_that_hears_no_alarm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("stepladder.labs.grading.examine.GRACE_SECONDS", 0.5)
    deaf = "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)"
    loop = f"{deaf}\n    while True:\n        pass"
    assert "had to be killed" in first_failure(tmp_path, changed(loop), limit_seconds=1)


def test_a_loop_on_a_rank_is_named_by_its_line(tmp_path):
    path = tmp_path / "ring.py"
    right = "chunks[arriving].add_(exchange(chunks[leaving]))"
    loop = "while rank == 1:\n            arriving += 1"
    path.write_text(solution(RING.lesson.read_text()).replace(right, loop))
    found = judge(RING, path, limit_seconds=2)
    said = next(finding.message for finding in found if not finding.passed)
    assert "still running when its processor time was over" in said
    assert "arriving += 1" in said or "while rank == 1" in said


def test_waiting_costs_no_processor_time_and_is_no_loop(tmp_path):
    asleep = f"import time\n    index == (0, 0, 0) and time.sleep(2)\n    {BODY}"
    path = tmp_path / "mine.py"
    path.write_text(changed(asleep))
    found = judge(LAB, path, limit_seconds=1)
    assert next(iter(found)).passed


@pytest.mark.soak  # torch is imported once more
def test_importing_torch_is_none_of_the_files_time(tmp_path, monkeypatch):
    monkeypatch.setattr("stepladder.labs.grading.own_session.METHOD", "spawn")
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    assert all(finding.passed for finding in judge(LAB, path, limit_seconds=1))


@pytest.mark.soak  # what is idle is told by a clock
def test_what_waits_for_ever_is_told_apart_from_a_loop(tmp_path, monkeypatch):
    monkeypatch.setattr("stepladder.labs.grading.processor_time.Budget.begin", impatient)
    said = first_failure(tmp_path, changed("import time\n    while True: time.sleep(600)"))
    assert said.startswith("It waits for something that does not come")
    assert "time.sleep(600)" in said


def impatient(budget, limit_seconds, idle_seconds=2.0, begin=Budget.begin):
    begin(budget, limit_seconds, idle_seconds)


def test_a_file_that_ends_the_process_is_said_to(tmp_path):
    said = first_failure(tmp_path, changed("import os; os._exit(0)"))
    assert said == "The process ended without an answer: exit() or a crash."


def test_exit_is_an_error_like_others(tmp_path):
    assert "SystemExit: 3" in first_failure(tmp_path, changed("raise SystemExit(3)"))


def test_a_syntax_error_is_named_by_its_line(tmp_path):
    said = first_failure(tmp_path, "def broken(:\n    pass\n")
    assert said.startswith("line 1: def broken(:\n")


def test_a_function_that_went_missing_is_named(tmp_path):
    said = first_failure(tmp_path, "import torch\n")
    assert said == (
        "Your file has no 'position'. Write it, or give what does its work that name: "
        "'stepladder lab start views --adapter' writes a file for that."
    )


def test_a_part_not_written_is_said_so(tmp_path):
    assert "not written yet" in first_failure(tmp_path, changed("raise NotImplementedError"))
    assert "position is not written yet: it gave Ellipsis" in first_failure(
        tmp_path, changed("return ...")
    )


def test_a_package_that_is_missing_is_named_with_its_command(tmp_path):
    said = first_failure(tmp_path, GOOD.replace("import torch\n", "import no_such_package\n", 1))
    assert "This lab needs the package 'no_such_package': pip install no_such_package" in said


def test_an_answer_of_another_kind_does_not_break_the_check(tmp_path):
    said = first_failure(tmp_path, changed("return {offset: 1}"))
    assert said.startswith("What your code gave back could not be used. ")


def test_processes_that_a_file_started_end_with_it(tmp_path):
    note = tmp_path / "pid"
    child = (
        "import subprocess, sys\n    child = subprocess.Popen([sys.executable, '-c', "
        f"'import time; time.sleep(600)'])\n    open({str(note)!r}, 'w').write(str(child.pid))\n"
        "    raise ValueError"
    )
    first_failure(tmp_path, changed(child))
    state = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(200):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child is still alive")
