"""stepladder against its peers on two CPU ranks: the same model, data and optimizer, side by side.

    python benchmarks/peers/peers_cpu.py [--rounds 12] [--write] [--only NAMES]

Every contender has two processes of its own, kept for the whole run; in each round each of them in
turn takes a few steps while all others stand still, so that a slow moment of the machine hits all
alike. Ratios are medians over rounds of times measured in the same round. Before it is timed, a
contender is held to its word: its losses must be those of the others, and where it says that
parameters or optimizer state are sliced, its process must hold slices.

Peers that are not installed are left out, with the reason. To have them all, without touching the
project's environment:

    python -m venv peers
    echo "import site; site.addsitedir('$(echo $PWD/.venv/lib/python3*/site-packages)')" \
        > $(echo peers/lib/python3*/site-packages)/shared.pth
    grep -o '^[a-z][^ ]*==[^ ]*' requirements/dev.txt > pins.txt
    peers/bin/pip install -c pins.txt deepspeed accelerate lightning
    peers/bin/python benchmarks/peers/peers_cpu.py
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from peers_cpu_rank import CONTENDERS

RESULTS = Path(__file__).parents[1] / "results" / "peers_cpu.json"
RANKS = 2
WORKER = Path(__file__).with_name("peers_cpu_rank.py")
START_SECONDS = 900  # DeepSpeed compiles an extension when it is first used
SAME_LOSS = 2e-4  # relative, over the first steps
NOT_WORSE = 0.95  # of the fastest peer's speed


@dataclass
class Contender:
    name: str
    processes: list[subprocess.Popen[str]]
    log: Path
    facts: list[dict[str, Any]]  # by rank

    def ask(self, word: str) -> list[dict[str, Any]]:
        """The same question to both ranks; their answers."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(word + "\n")
            process.stdin.flush()
        return [answer_of(process, self.log) for process in self.processes]

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def answer_of(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """The next line that is an answer; libraries may print others."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ANSWER "):
            return json.loads(line.removeprefix("ANSWER "))
    said = log.read_text().strip().splitlines()
    raise RuntimeError(said[-1] if said else "ended without a word")


def start(name: str, folder: Path) -> Contender:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / f"{name.replace(' ', '-')}.log"
    processes = []
    for rank in range(RANKS):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "NODE_RANK": "0",
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log.open("a"),
                text=True,
                env=environment,
            )
        )
    contender = Contender(name, processes, log, [])
    contender.facts = [answer_of(process, log) for process in processes]
    return contender


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--rounds", type=int, default=12)
    reader.add_argument("--only", default="", metavar="NAMES", help="comma-separated beginnings")
    reader.add_argument("--write", action="store_true", help="put the table into results/")
    options = reader.parse_args()
    wanted = tuple(options.only.split(","))
    names = [name for name in CONTENDERS if name.startswith(wanted)]
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        running, absent = open_all(names, Path(folder))
        try:
            seconds = race(running, options.rounds)
            rows = [row_of(contender, seconds) for contender in running]
        finally:
            for contender in running:
                contender.stop()
    found = verdict(rows, absent)
    print(json.dumps(found, indent=1))
    if options.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["not worse"] else 1


def open_all(names: list[str], folder: Path) -> tuple[list[Contender], dict[str, str]]:
    running: list[Contender] = []
    absent: dict[str, str] = {}
    for name in names:
        print(f"starting {name}", file=sys.stderr, flush=True)
        try:
            running.append(start(name, folder))
        except RuntimeError as reason:
            absent[name] = str(reason)
            print(f"  left out: {reason}", file=sys.stderr, flush=True)
    check_losses(running)
    return running, absent


def check_losses(running: list[Contender]) -> None:
    """All learn the same, or the comparison is worth nothing."""
    expected = running[0].facts[0]["losses"]
    for contender in running:
        # A peer reports the loss of its own rows; the mean over ranks is the batch's.
        by_rank = [facts["losses"] for facts in contender.facts]
        means = [statistics.mean(losses) for losses in zip(*by_rank)]
        apart = max(abs(a - b) / b for a, b in zip(means, expected))
        if not apart <= SAME_LOSS:
            raise SystemExit(f"{contender.name} trains something else: losses {apart:.1e} apart")


def race(running: list[Contender], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each contender, round by round; a round begins with another each time."""
    seconds: dict[str, list[float]] = {contender.name: [] for contender in running}
    for number in range(rounds):
        turn = number % len(running)
        for contender in running[turn:] + running[:turn]:
            answers = contender.ask("go")
            seconds[contender.name].append(max(answer["seconds"] for answer in answers))
            time.sleep(0.05)
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return seconds


def row_of(contender: Contender, seconds: dict[str, list[float]]) -> dict[str, Any]:
    answers = contender.ask("memory")
    return {
        "name": contender.name,
        "step_ms": statistics.median(seconds[contender.name]) * 1e3,
        "rounds_ms": [round(s * 1e3, 2) for s in seconds[contender.name]],
        "peak_mib": max(answer["peak_mib"] for answer in answers),
        "state_mib": max(facts["state_mib"] for facts in contender.facts),
        "losses": contender.facts[0]["losses"],
        "version": contender.facts[0]["version"],
    }


def verdict(rows: list[dict[str, Any]], absent: dict[str, str]) -> dict[str, Any]:
    ours = [row for row in rows if row["name"].startswith("stepladder")]
    peers = [row for row in rows if not row["name"].startswith(("stepladder", "torch"))]
    ratios = {
        f"{one['name']} against {other['name']}": round(
            statistics.median(b / a for a, b in zip(one["rounds_ms"], other["rounds_ms"])), 3
        )
        for one in ours
        for other in rows
        if other not in ours
    }
    best = min(peers, key=lambda row: row["step_ms"], default=None)
    speeds = [ratios[f"{row['name']} against {best['name']}"] for row in ours] if best else []
    return {
        "date": str(date.today()),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, gloo",
        "fastest peer": best and best["name"],
        "our best speed against it": max(speeds, default=None),
        "not worse": not speeds or max(speeds) >= NOT_WORSE,
        "left out": absent,
        "speed": ratios,
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
