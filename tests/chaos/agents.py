"""torchrun's own agents: `python -m tests.chaos.agents`, as docs/survival.md says it is done.

Two agents on this machine, one rank each. The second is killed with its rank and started again; the
first goes on alone and takes it back in. The losses of every step are compared with those of a run
that nobody touched.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from .hosts import TOLERANCE, WORDS, compare
from .victim import LIMIT_SECONDS, TINY, Victim, environment

STEPS = 600
MEET = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29477", "--rdzv-id", "one"]


def start(folder: Path, name: str, hosts: bool) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2"]
    torchrun += ["--nproc-per-node", "1", "--max-restarts", "3", *MEET]
    torchrun += ["--rdzv-conf", f"is_host={str(hosts).lower()}"]
    train = ["-m", "stepladder.cli.rank", "train", *TINY, *WORDS, "--train.steps", str(STEPS)]
    train += ["--train.save_every", "20", "--elastic", "--run.folder", str(folder)]
    with (folder / f"agent-{name}.txt").open("ab") as terminal:
        return subprocess.Popen(
            [*torchrun, *train],
            stdout=terminal,
            stderr=subprocess.STDOUT,
            env={**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )


def kill(agent: subprocess.Popen[bytes]) -> None:
    """An agent and its rank, at once."""
    if agent.poll() is None:
        for process in [*psutil.Process(agent.pid).children(recursive=True), agent]:
            process.kill()
        agent.wait()


def see(run: Victim, ranks: int, since: int) -> None:
    """Wait until so many ranks train, and a little more."""
    began = time.monotonic()
    while not any(entry["ranks"] == ranks for entry in run.entries("start")[since:]):
        if time.monotonic() - began > LIMIT_SECONDS:
            raise TimeoutError(f"no {ranks} ranks began: see {run.folder}/agent-a.txt")
        time.sleep(0.2)
    step = run.entries("start")[-1]["step"]
    print(f"{ranks} rank(s) from step {step} after {time.monotonic() - began:.1f} s", flush=True)
    time.sleep(3)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="agents-") as space:
        run = Victim(Path(space) / "run", [])
        first, second = start(run.folder, "a", True), start(run.folder, "b", False)
        try:
            see(run, 2, 0)
            lives = run.lives()
            kill(second)
            see(run, 1, lives)
            lives = run.lives()
            second = start(run.folder, "b", False)
            see(run, 2, lives)
            codes = [agent.wait(LIMIT_SECONDS) for agent in (first, second)]
        finally:
            kill(first)
            kill(second)
        difference = compare(run, STEPS, Path(space) / "reference")
    print(f"ended with {codes}; {STEPS} steps, largest difference {difference:.1e}")
    return 0 if codes == [0, 0] and difference < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
