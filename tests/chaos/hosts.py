"""Two hosts: `python -m tests.chaos.hosts` writes benchmarks/results/hosts.json.

Two network namespaces of this machine are two hosts with a cable between them, one rank on each.
One host is lost (its launcher and its rank are killed) and started again; the cable is cut and
mended. Each time the other host goes on alone and takes the lost one back in. The losses of every
step are compared with those of a run that nobody touched. Then the cable is made slow, and a step
is timed with and without compression.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from stepladder.bench import measure_compression
from stepladder.measure import SlowLink

from .victim import LIMIT_SECONDS, Victim

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "hosts.json"
PORT = 29400
WORDS = [
    "--train.batch", "48", "--model.sequence", "64", "--optimizer.name", "sgd",
    # Small: at 0.1 the rounding of sums in another order grows a thousandfold after 500 steps.
    "--optimizer.lr", "0.01", "--rate.kind", "constant",
    # The usual one is shorter in a run of fewer steps, and how many these are is known at the end.
    "--rate.warmup", "0",
    "--model.dropout", "0.0",  # what is dropped depends on the rank, and ranks come and go
]  # fmt: skip
FEW_STEPS = 50
TOLERANCE = 1e-4  # of a loss, relative: sums of fp32 in another order


class Hosts:
    """Two hosts and what is done to them; every event with the seconds until the run went on."""

    def __init__(self, cable: SlowLink, folder: Path, save_every: int) -> None:
        meet = ["--nodes", "1:2", "--rendezvous", f"{cable.addresses[0]}:{PORT}", "--ranks", "1"]
        words = [*WORDS, *meet, "--train.steps", "1000000", "--run.timeout_seconds", "10"]
        words += ["--restarts", "100", "--train.save_every", str(save_every)]
        self.cable, self.folder = cable, folder
        self.hosts = [
            Victim(folder, words, before=cable.inside(end), name=f"-{'ab'[end]}")
            for end in range(2)
        ]
        self.events: list[dict] = []

    def begin(self) -> None:
        for host in self.hosts:
            host.start()
        self.see("both hosts started", ranks=2, since=0)

    def see(self, what: str, *, ranks: int, since: int) -> None:
        """Wait until so many ranks train, and have taken a few steps."""
        began = time.monotonic()
        first = self.hosts[0]
        meant = lambda: [e for e in first.entries("start")[since:] if e["ranks"] == ranks]  # noqa: E731
        self.wait_for(lambda: bool(meant()))
        seconds = round(time.monotonic() - began, 1)
        step = meant()[0]["step"]
        self.events.append({"what": what, "ranks": ranks, "seconds": seconds, "step": step})
        print(f"{what}: {ranks} rank(s) go on from step {step} after {seconds} s", flush=True)
        taken = len(first.entries("step"))
        self.wait_for(lambda: len(first.entries("step")) >= taken + FEW_STEPS)

    def wait_for(self, what: Callable[[], bool]) -> None:
        # Seldom: each look reads a journal that grows.
        if not self.hosts[0].wait_for(what, pause=0.1):
            raise RuntimeError(f"the run ended: see {self.hosts[0].terminal}")

    def forget(self) -> None:
        """Remove what was saved: a host that comes late is taken in by a save."""
        for path in [*self.folder.glob("step-*"), *self.folder.glob("latest")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def lose(self) -> None:
        """Kill all of the second host at once."""
        since, host = self.hosts[0].lives(), self.hosts[1]
        assert host.launcher is not None
        for pid in [*(rank.pid for rank in host.ranks().values()), host.launcher.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.launcher.wait()
        self.see("second host killed", ranks=1, since=since)

    def bring_back(self) -> None:
        since = self.hosts[0].lives()
        self.hosts[1].start()
        self.see("second host started again", ranks=2, since=since)

    def cut(self) -> None:
        since = self.hosts[0].lives()
        self.switch("down")
        self.see("cable cut", ranks=1, since=since)

    def mend(self) -> None:
        since = self.hosts[0].lives()
        self.switch("up")
        self.see("cable mended", ranks=2, since=since)

    def switch(self, way: str) -> None:
        name, device = self.cable.names[1], self.cable.devices[1]
        subprocess.run(["ip", "-n", name, "link", "set", device, way], check=True)

    def stop(self) -> int:
        """Ask both to stop; the step they saved."""
        for host in reversed(self.hosts):  # the second needs the first, where they meet
            assert host.launcher is not None
            host.launcher.send_signal(signal.SIGTERM)
        codes = [host.launcher.wait(LIMIT_SECONDS) for host in self.hosts if host.launcher]
        if codes != [143, 143]:
            raise RuntimeError(f"ended with {codes}")
        return self.hosts[0].committed()

    def end(self) -> None:
        for host in self.hosts:
            host.end()


def compare(run: Victim, steps: int, folder: Path) -> float:
    """The largest relative difference of any step's loss from a run that nobody touched."""
    reference = Victim(folder, [*WORDS, "--ranks", "2", "--train.steps", str(steps)])
    reference.start()
    assert reference.launcher is not None
    try:
        if reference.launcher.wait(LIMIT_SECONDS * 4):
            raise RuntimeError(f"the undisturbed run failed: see {reference.terminal}")
    finally:
        reference.end()
    expected, found = reference.losses(), run.losses()
    if set(expected) - set(found):
        raise RuntimeError(f"steps {sorted(set(expected) - set(found))[:5]} were never taken")
    rates, other = reference.taken("lr"), run.taken("lr")
    for step, rate in rates.items():  # runs asked for other things no training can make the same
        if other[step] != rate:
            raise RuntimeError(f"step {step} at rates {other[step]}, undisturbed at {rate}")
    return max(
        abs(loss - right) / right
        for step, rights in expected.items()
        for right in rights
        for loss in found[step]
    )


def disturb(folder: Path, *, cut: bool = True, save_every: int = 20) -> dict:
    """Everything that may happen to a host; what came of it."""
    with SlowLink(None) as cable:
        hosts = Hosts(cable, folder / "run", save_every)
        try:
            hosts.begin()
            if not save_every:
                hosts.forget()
            hosts.lose()
            hosts.bring_back()
            if cut:
                hosts.cut()
                hosts.mend()
            steps = hosts.stop()
        finally:
            hosts.end()
    difference = compare(hosts.hosts[0], steps, folder / "reference")
    return {"events": hosts.events, "steps": steps, "largest difference": difference}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt-tiny", help="trained over slow links")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-links", action="store_true", help="leave out the slow links")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hosts-") as space:
        result = disturb(Path(space))
    rows = [] if options.no_links else [
        asdict(row)
        for row in measure_compression(options.model, batch=4, sequence=64, steps=options.steps)
    ]  # fmt: skip
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.system()}",
        "good": result["largest difference"] < TOLERANCE,
        **result,
        "links": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['steps']} steps, largest difference {result['largest difference']:.1e}")
    for row in rows:
        print(row)
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
