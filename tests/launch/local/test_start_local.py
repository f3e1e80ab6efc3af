"""Real ranks of small scripts: one log, one line for the first failure, nobody left behind."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from stepladder.errors import RecordError
from stepladder.launch import launch_local
from stepladder.launch.local.rank_logs import Screen, WholeLines
from stepladder.launch.local.start_local import rank_environment
from tests.processes import ended

pytestmark = pytest.mark.timeout(600)  # ranks that import torch start in minutes in a crowd

HEAD = "import os, sys, time, signal, subprocess\nrank = int(os.environ['RANK'])\n"


def launch(tmp_path, body, ranks=2, **how):
    script = tmp_path / "train.py"
    script.write_text(HEAD + textwrap.dedent(body))
    return launch_local([str(script)], ranks=ranks, folder=tmp_path / "run", **how)


def test_rank_0_speaks_and_others_are_labelled_and_each_has_a_file(tmp_path, capsys):
    code = launch(tmp_path, """
        print(f"hello from {rank} of {os.environ['WORLD_SIZE']}", flush=True)
        print("both complain of this", file=sys.stderr)
        print("[W1115 05:11:53 TCPStore.cpp:115] noise of a library", file=sys.stderr)
    """)  # fmt: skip
    assert code == 0
    said = capsys.readouterr()
    lines = ["[rank 1] hello from 1 of 2", "hello from 0 of 2"]
    assert sorted(said.out.splitlines()) == lines
    assert said.err.removeprefix("[rank 1] ") == "both complain of this\n"
    kept = tmp_path / "run" / "ranks"
    assert (kept / "rank-1.out").read_text() == "hello from 1 of 2\n"
    assert "noise of a library" in (kept / "rank-0.err").read_text()


class Slow(set):
    """One whose answer comes late, as that of a thread which has lost its processor."""

    def __contains__(self, word):
        found = super().__contains__(word)
        time.sleep(0.1)
        return found


def test_a_complaint_that_two_ranks_make_at_once_is_shown_once():
    shown = io.StringIO()
    screen = Screen(shown, stderr=True)
    screen.seen = Slow()
    lines = ["all of us complain\n", "[rank 1] all of us complain\n"]
    threads = [threading.Thread(target=screen.write, args=(line,)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shown.getvalue() in lines


def test_a_line_that_is_written_in_pieces_is_shown_whole_behind_its_label():
    shown = io.StringIO()
    screen = Screen(shown, stderr=False)
    first, second = WholeLines(screen, ""), WholeLines(screen, "[rank 1] ")
    for piece in ("a", " ready", "\n", "b"):
        first.write(piece)
        second.write(piece.upper())
    first.end()
    second.end()
    assert shown.getvalue() == "a ready\n[rank 1] A READY\nb\n[rank 1] B\n"


def test_a_rank_that_ends_badly_is_named_with_its_last_words(tmp_path, capsys):
    code = launch(tmp_path, """
        if rank == 1:
            print("cannot open the door", file=sys.stderr)
            sys.exit(7)
        time.sleep(60)
    """)  # fmt: skip
    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-3:] == [
        "[rank 1] ended with exit code 7.",
        "Its last words: cannot open the door",
        f"Its log: {tmp_path}/run/ranks/rank-1.err",
    ]


def test_a_rank_that_was_killed_is_named_and_takes_its_children_with_it(tmp_path, capsys):
    code = launch(tmp_path, """
        if rank == 1:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print(child.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """)  # fmt: skip
    assert code == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[0] == (
        "[rank 1] ended by SIGKILL, which is how a machine short of memory ends a process."
    )
    child = int(said.out.removeprefix("[rank 1] "))
    assert ended([child], 60)  # told to end, it ends when it has a processor


def send_when(folder, **signals):
    """Send this process each signal once both ranks have said its word."""

    def work():
        files = [folder / "ranks" / f"rank-{rank}.out" for rank in (0, 1)]
        for word, number in signals.items():
            while not all(file.exists() and word in file.read_text() for file in files):
                time.sleep(0.05)
            os.kill(os.getpid(), number)

    threading.Thread(target=work, daemon=True).start()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_rank_and_the_code_is_the_signals(tmp_path, capsys, number):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    send_when(tmp_path / "run", ready=number)
    code = launch(tmp_path, """
        def stop(number, frame):
            print("saved", flush=True)
            sys.exit(128 + number)
        signal.signal(signal.SIGINT, stop), signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        time.sleep(60)
    """)  # fmt: skip
    assert code == 128 + number
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == ["[rank 1] ready", "[rank 1] saved", "ready", "saved"]
    assert said.err == ""
    after = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before


def test_a_second_signal_ends_ranks_that_do_not_stop(tmp_path, capsys):
    send_when(tmp_path / "run", ready=signal.SIGINT, deaf=signal.SIGINT)
    began = time.monotonic()
    code = launch(tmp_path, """
        signal.signal(signal.SIGINT, lambda *_: print("deaf", os.getpid(), flush=True))
        print("ready", os.getpid(), flush=True)
        time.sleep(600)
    """)  # fmt: skip
    assert code == 130 and time.monotonic() - began < 200
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and ended(int(line.split()[-1]) for line in said)


@pytest.mark.soak
def test_ranks_end_with_their_launcher(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        HEAD + "from stepladder.launch.local.rank_process import begin_rank\n"
        "begin_rank()\nprint(os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    start = (
        "from pathlib import Path\nfrom stepladder.launch import launch_local\n"
        f"launch_local(['{script}'], ranks=2, folder=Path('{tmp_path}/run'))"
    )
    launcher = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True)
    pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
    launcher.kill()
    launcher.wait()
    assert ended(pids, 60)


def test_threads_are_shared_out_unless_the_user_said_how_many(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert rank_environment(3, {})["OMP_NUM_THREADS"] == "2"
    assert rank_environment(100, {})["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in rank_environment(3, {"OMP_NUM_THREADS": "5"})


def test_the_ranks_see_what_was_set_for_them(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert launch(tmp_path, "print(os.environ['OMP_NUM_THREADS'])", ranks=1) == 0
    assert capsys.readouterr().out == rank_environment(1, {})["OMP_NUM_THREADS"] + "\n"


def test_a_folder_that_cannot_be_written_is_said_before_anything_starts(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RecordError, match=r"run/ranks cannot be written \(Not a directory\)"):
        launch(tmp_path, "")


@pytest.mark.soak
def test_ranks_that_were_lost_start_again_and_each_start_keeps_its_words(tmp_path, capsys):
    body = f"""
        first = not os.path.exists({str(tmp_path / "seen")!r})
        print("first" if first else "again", rank, flush=True)
        if first and rank == 0:
            open({str(tmp_path / "said")!r}, "w").close()
            time.sleep(600)
        if first:
            while not os.path.exists({str(tmp_path / "said")!r}):
                time.sleep(0.01)
            open({str(tmp_path / "seen")!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert launch(tmp_path, body, restarts=2) == 0
    said = capsys.readouterr()
    assert sorted(said.out.splitlines()) == [
        "[rank 1] again 1", "[rank 1] first 1", "again 0", "first 0"
    ]  # fmt: skip
    assert said.err.splitlines() == [
        "[rank 1] ended by SIGKILL, which is how a machine short of memory ends a process.",
        f"Its log: {tmp_path}/run/ranks/rank-1.err",
        "Starting again (1 of 2).",
    ]
    kept = tmp_path / "run" / "ranks"
    assert (kept / "rank-1.out").read_text() == "first 1\n"
    assert (kept / "restart-1" / "rank-1.out").read_text() == "again 1\n"


@pytest.mark.soak
def test_what_fails_twice_the_same_way_is_not_tried_a_third_time(tmp_path, capsys):
    code = launch(tmp_path, """
        from stepladder.launch.local.rank_process import record_failure
        print("start", flush=True)
        try:
            raise ValueError("broken for good")
        except ValueError as error:
            record_failure(error)
        sys.exit(1)
    """, ranks=1, restarts=9)  # fmt: skip
    said = capsys.readouterr()
    assert code == 1 and said.out == "start\nstart\n"
    assert said.err.count("Starting again (1 of 9).") == 1 and "(2 of 9)" not in said.err


def test_a_users_mistake_is_not_tried_again(tmp_path, capsys):
    code = launch(tmp_path, """
        from stepladder.errors import PlanError
        from stepladder.launch.local.rank_process import record_failure
        record_failure(PlanError("batch", "3 is odd", "Use 4."))
        sys.exit(2)
    """, ranks=1, restarts=9)  # fmt: skip
    assert code == 2 and capsys.readouterr().err == "[rank 0] batch: 3 is odd. Use 4.\n"


@pytest.mark.soak
def test_a_stopped_rank_that_nobody_misses_is_ended(tmp_path, capsys):
    body = f"""
        if not os.path.exists({str(tmp_path / "seen")!r}):
            open({str(tmp_path / "seen")!r}, "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
    """
    assert launch(tmp_path, body, ranks=1, restarts=1, wait_seconds=1) == 0
    assert "[rank 0] was stopped for 1 s." in capsys.readouterr().err


def test_notices_of_a_scheduler_do_not_cut_a_save_short(tmp_path, capsys):
    send_when(tmp_path / "run", ready=signal.SIGUSR1, saving=signal.SIGTERM)
    code = launch(tmp_path, """
        asked = []
        signal.signal(signal.SIGUSR1, lambda *_: print("saving", flush=True))
        signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
        print("ready", flush=True)
        while not asked:
            time.sleep(0.05)
        print("saved", flush=True)
        sys.exit(143)
    """, restarts=3)  # fmt: skip
    assert code == 143 and capsys.readouterr().out.count("saved") == 2
