"""Nothing of a stream is lost or repeated where its ranks are killed and others go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.streams_of_tests import ROWS
from tests.ports import free_port

pytestmark = pytest.mark.soak  # signals, and eleven processes that import torch
SCRIPT = Path(__file__).with_name("stream_victim.py")
STEPS = 21  # 84 rows: nearly two epochs
LIMIT_SECONDS = 120


def start(folder, kind, ranks):
    """The script on so many ranks, as a launcher starts it."""
    port, root = str(free_port()), str(SCRIPT.parents[3])
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", ""), f"{root}/src"])
    shared = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks),
              "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), kind, str(STEPS)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]


def wait(processes):
    assert [process.wait(LIMIT_SECONDS) for process in processes] == [0] * len(processes)


def learned(folder, rank):
    """What a rank wrote; a line may be cut where it was killed."""
    file = folder / f"learned-{rank}.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]]")]


def kill_after(folder, processes, step):
    """SIGKILL to every rank once the first has taken so many steps."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(learned(folder, 0)) < step:
        assert time.monotonic() < deadline and processes[0].poll() is None
        time.sleep(0.01)
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.wait()


def by_step(folder, ranks):
    """Rows of each step over all ranks, the last time it was taken, and its loss each time."""
    rows, losses = {}, {}
    for rank in range(ranks):
        for step, loss, mine in learned(folder, rank):
            losses.setdefault(step, set()).add(loss)
            rows.setdefault(step, {})[rank] = mine
    return {s: [row for rank in sorted(rows[s]) for row in rows[s][rank]] for s in rows}, losses


def check_rows(rows):
    """The first epoch whole, and no row of the second twice."""
    assert sorted(rows[:ROWS]) == list(range(ROWS))
    assert len({*rows[ROWS:]}) == len(rows[ROWS:]) == 4 * STEPS - ROWS


@pytest.mark.parametrize(("kind", "ranks"), [("counting", 2), ("keeping", 1)])
def test_killed_ranks_go_on_with_every_row_once_and_the_same_losses(kind, ranks, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    wait(start(whole, kind, ranks))
    kill_after(cut, start(cut, kind, ranks), 11)
    wait(start(cut, kind, ranks))
    rows, losses = by_step(cut, ranks)
    expected, uninterrupted = by_step(whole, ranks)
    assert losses == uninterrupted and rows == expected and sorted(rows) == list(range(STEPS))
    check_rows([row for step in range(STEPS) for row in rows[step]])


def test_four_ranks_go_on_where_two_were_killed(tmp_path):
    kill_after(tmp_path, start(tmp_path, "counting", 2), 11)
    saved = int((tmp_path / "latest").read_text().strip().removeprefix("step-"))
    before, _ = by_step(tmp_path, 2)
    for rank in range(2):
        (tmp_path / f"learned-{rank}.jsonl").rename(tmp_path / f"before-{rank}.jsonl")
    wait(start(tmp_path, "counting", 4))
    after, _ = by_step(tmp_path, 4)
    assert sorted(after) == list(range(saved, STEPS)) and 3 <= saved <= 12
    rows = [row for step in range(saved) for row in before[step]]
    rows += [row for step in range(saved, STEPS) for row in after[step]]
    check_rows(rows)
