"""The page's server on a long run: how soon it answers and how much memory it takes.

Writes a journal of a million steps (with memory by owner, ranks and device in between, and a resume
that repeats ten thousand steps), starts `stepladder watch` on it as a user would, and asks what the
page asks: at once, while the journal is being read, and afterwards for ranges wide and narrow.
Where there is a chromium, a browser then opens the page, and the curves' being drawn is timed.
Exit 1 where an answer takes 300 ms, the page a second, or the server 200 MB.
Run: python benchmarks/dashboard_server.py [--steps N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from urllib.request import urlopen

import psutil

from stepladder.record import Report, journal_path

ANSWER_SECONDS, PAGE_SECONDS, MEMORY_BYTES = 0.3, 1.0, 200e6
REPEATS = 5
FILES = ("", "assets/page.css", "assets/main.js", "assets/chart.js", "assets/curves.js",
         "assets/panels.js", "assets/format.js", "assets/icon.svg")  # fmt: skip


def write_journal(folder: Path, steps: int) -> int:
    """A run of so many steps, each reported; its size."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(f"[train]\nsteps = {steps}\n")
    luck = random.Random(0)
    repeated = min(10_000, steps // 10)
    with journal_path(folder).open("w") as journal:
        journal.write('{"kind":"start","plan":"bf16 zero3","step":0}\n')
        for step in range(steps - repeated // 2):
            journal.write(line(step, luck))
        journal.write(f'{{"kind":"start","plan":"bf16 zero3","step":{steps - repeated}}}\n')
        for step in range(steps - repeated, steps):
            journal.write(line(step, luck))
    return journal_path(folder).stat().st_size


def line(step: int, luck: random.Random) -> str:
    noise = luck.random()
    entry = Report(
        step=step,
        loss=2 + 8 / (1 + step / 1e4) + noise / 10,
        grad_norm=1 + noise,
        lr=3e-4,
        tokens=65536,
        seconds=0.02 + noise / 1e3,
        memory_bytes=70_000_000_000,
        tokens_per_second=1e5 + 1e3 * noise,
        flops_per_second=4e14,
        mfu=0.4 + noise / 100,
        hfu=0.5,
        data_seconds=noise / 1e3,
    ).to_dict()
    lines = [{"kind": "step", **entry}]
    if step % 100 == 0:
        owners = {
            "parameters": 4e9,
            "gradients": 4e9,
            "optimizer": 8e9,
            "activations": 3e10 + noise,
        }
        lines += [
            {"kind": "memory", "step": step, "owners": owners, "limit_bytes": 80 * 2**30},
            {"kind": "ranks", "step": step, "own_seconds": [0.02 + noise / 1e3] * 64},
            {
                "kind": "device",
                "step": step,
                "utilisation": 0.9 + noise / 10,
                "power_w": 600 + noise,
            },
            {"kind": "collectives", "step": step, "seconds": {"all_gather": noise / 1e3}},
        ]
    if step % 1000 == 999:
        lines.append({"kind": "save", "step": step, "path": f"step-{step + 1:06d}"})
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in lines)


class Server:
    """`stepladder watch` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "stepladder.cli.main", "watch", str(folder), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.address = next(word for word in said.split() if word.startswith("http"))
        self.most = 0

    def ask(self, path: str) -> tuple[float, bytes]:
        """Seconds and text of one answer."""
        began = time.perf_counter()
        with urlopen(self.address + path, timeout=60) as answer:
            text = answer.read()
        seconds = time.perf_counter() - began
        self.most = max(self.most, psutil.Process(self.process.pid).memory_info().rss)
        return seconds, text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(server: Server, steps: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def note(what: str, seconds: list[float], limit: float | None, size: int = 0) -> None:
        rows.append({"what": what, "seconds": max(seconds), "limit": limit, "bytes": size})

    began = time.perf_counter()
    opened = [server.ask(name)[0] for name in FILES]
    first, text = server.ask("api/series?run=run")
    note("page with its first curves", [sum(opened) + first], PAGE_SECONDS, len(text))
    while_reading: list[float] = []
    while json.loads(server.ask("api/runs")[1])[0]["read"] < 1:
        while_reading.append(server.ask("api/series?run=run")[0])
        time.sleep(0.3)
    note("the whole journal read", [time.perf_counter() - began], None)
    if while_reading:
        note("curves while it is read", while_reading, None)
    third = steps // 3
    ranges = {
        "whole": (0, steps),
        "half": (steps // 2, steps),
        "a hundredth": (third, third + steps // 100),
        "2,300 steps, one by one": (third, third + 2300),
        "100 steps": (steps - 100, steps),
    }
    for name, (low, high) in ranges.items():
        answers = [
            server.ask(f"api/series?run=run&first={low}&last={high}&points=864")
            for _ in range(REPEATS)
        ]
        note(f"curves: {name}", [one[0] for one in answers], ANSWER_SECONDS, len(answers[0][1]))
    note("facts", [server.ask("api/facts?run=run")[0] for _ in range(REPEATS)], ANSWER_SECONDS)
    note("list", [server.ask("api/runs")[0] for _ in range(REPEATS)], ANSWER_SECONDS)
    return rows


def first_draws(address: str) -> list[float]:
    """Seconds from asking for the page to the loss being drawn, in a browser; none without one.

    The first, in which the browser itself warms up, is left out.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return []
    if not chromium:
        return []
    taken = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(REPEATS + 1):
            page = browser.new_context().new_page()  # of its own: nothing is kept from before
            began = time.perf_counter()
            page.goto(address, wait_until="commit")
            page.wait_for_selector("#chart-loss path.mean")
            taken.append(time.perf_counter() - began)
            page.context.close()
        browser.close()
    return taken[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_journal(Path(folder) / "run", options.steps)
        server = Server(Path(folder) / "run")
        try:
            rows = measure(server, options.steps)
            if draws := first_draws(server.address):
                drawn = statistics.median(draws)
                rows.append({"what": "drawn in a browser, median", "seconds": drawn,
                             "limit": PAGE_SECONDS, "bytes": 0})  # fmt: skip
                rows.append({"what": "drawn in a browser, slowest", "seconds": max(draws),
                             "limit": None, "bytes": 0})  # fmt: skip
        finally:
            server.close()
    print(
        f"{options.steps:,} steps, {size / 2**20:,.0f} MiB of journal; the worst of {REPEATS} each"
    )
    for row in rows:
        print(
            f"{row['what']:<32} {row['seconds'] * 1e3:10,.1f} ms  {row['bytes'] / 1024:8,.0f} KiB"
        )
    print(f"{'memory of the server, at most':<32} {server.most / 1e6:10,.1f} MB")
    if options.json:
        result = {
            "date": date.today().isoformat(),
            "machine": f"{os.cpu_count()} CPU cores",
            "steps": options.steps,
            "journal_bytes": size,
            "memory_bytes": server.most,
            "rows": rows,
        }
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    late = [row["what"] for row in rows if row["limit"] and row["seconds"] >= row["limit"]]
    print(
        "beyond its limit: " + ", ".join(map(str, late))
        if late
        else "every answer within its limit"
    )
    return int(bool(late) or server.most >= MEMORY_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
