"""The fuzzer's command line.

python -m tests.fuzz --pairs 5000 --seed 0 --jobs 2     the whole draw, into benchmarks/results
python -m tests.fuzz --pairs 5000 --keep runs/fuzz      the same; what is there is not tried again
python -m tests.fuzz --seed 17 --show                   one problem: its text and its outcome
python -m tests.fuzz --seed 17 --shrink                 make it small, and keep it as a case
python -m tests.fuzz --report runs/fuzz                 the table of rows that were kept
python -m tests.fuzz --planted                          which planted defects are found
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from tests.fork_server import fork_processes

from . import planted
from .problems.problem import Problem
from .report import add_up, row_of, write_table
from .runner import Runner
from .shrink import shrink

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CASES = Path(__file__).parent / "cases"


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    fork_processes()  # ranks that died are replaced at once, without a new import of torch
    if options.planted:
        return planted.main(options.pairs, options.seed, options.only, options.jobs, options.keep)
    if options.show:
        return show(options.seed)
    if options.shrink:
        return keep(options.seed)
    if options.rows:
        return write_rows(options)
    if options.report:
        rows = [row for file in sorted(options.report.iterdir()) for row in rows_in(file)]
    else:
        rows = list(all_rows(options))
    summary = add_up(rows)
    if options.json:
        print(json.dumps(summary.to_json(), indent=1))
    else:
        print(f"{summary.pairs} pairs, {summary.steps} steps: {summary.same} same, "
              f"{summary.refused} refused, {len(summary.bugs)} bugs")  # fmt: skip
    if not options.dry:
        command = f"python -m tests.fuzz --pairs {options.pairs} --seed {options.seed}"
        seeds = "`, `".join(f"--seed {first} --pairs {count}" for first, count in runs_of(rows))
        command = f"python -m tests.fuzz` with `{seeds}" if options.report else command
        write_table(summary, RESULTS, command=command, note=options.note)
    return 1 if summary.bugs else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="problems to try")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with its own ranks")
    parser.add_argument("--show", action="store_true", help="try only --seed, with all details")
    parser.add_argument("--shrink", action="store_true", help="make --seed small and keep it")
    parser.add_argument("--planted", action="store_true", help="plant known defects and find them")
    parser.add_argument("--only", default="", help="of the planted defects, those so described")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--keep", type=Path, help="folder for rows, to go on after a stop")
    parser.add_argument("--report", type=Path, help="only add up the rows in this folder")
    parser.add_argument("--note", default="", help="a sentence for the table")
    parser.add_argument("--dry", action="store_true", help="write no table")
    found = "only problems in whose JSON this is found; may be repeated"
    parser.add_argument("--matching", action="append", default=[], metavar="PATTERN", help=found)
    parser.add_argument("--most", type=int, help=argparse.SUPPRESS)  # pairs that one job tries
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)  # of one job, as JSON lines
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)  # end at a bug
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def write_rows(options: argparse.Namespace) -> int:
    """One job: every so-many-th problem, a line for each as soon as it is known."""
    known = {row["seed"] for file in options.rows.parent.iterdir() for row in rows_in(file)}
    seeds = range(options.seed, options.seed + options.pairs, options.every)
    chosen = (seed for seed in seeds if seed not in known and matches(seed, options.matching))
    with Runner() as runner, options.rows.open("a") as file:
        for seed in islice(chosen, options.most):
            row = row_of(runner.try_problem(Problem.draw(seed)))
            file.write(json.dumps(row) + "\n")
            file.flush()
            if options.first and row["outcome"] == "bug":
                break
    return 0


def matches(seed: int, patterns: list[str]) -> bool:
    text = Problem.draw(seed).to_json() if patterns else ""
    return all(re.search(pattern, text) for pattern in patterns)


def all_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all jobs, with progress and every bug printed as they come."""
    began, done, bugs = time.monotonic(), 0, 0
    seeds = range(options.seed, options.seed + options.pairs)
    with tempfile.TemporaryDirectory() as passing:
        folder = options.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        kept = [row for file in folder.iterdir() for row in rows_in(file) if row["seed"] in seeds]
        yield from kept
        files = [folder / f"{uuid4().hex[:8]}.jsonl" for _ in range(options.jobs)]
        jobs = [subprocess.Popen([
            sys.executable, "-m", "tests.fuzz", "--rows", str(file), "--every", str(options.jobs),
            "--seed", str(options.seed + index), "--pairs", str(options.pairs - index),
            *(word for pattern in options.matching for word in ("--matching", pattern)),
        ]) for index, file in enumerate(files)]  # fmt: skip
        try:
            for row in follow(files, jobs):
                done += 1
                if row["outcome"] == "bug":
                    bugs += 1
                    print(f"seed {row['seed']}: {row['plan']}: {row['kind']} [{row['stage']}] "
                          f"{row['text'][:200]}", file=sys.stderr, flush=True)  # fmt: skip
                if done % 50 == 0:
                    rate = done / (time.monotonic() - began)
                    print(f"{done} of {options.pairs - len(kept)}, {bugs} bugs, {rate:.1f} pairs/s",
                          file=sys.stderr, flush=True)  # fmt: skip
                yield row
        finally:
            for job in jobs:
                job.terminate()
                job.wait()


def runs_of(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The first seed of each run and how many were tried; runs are 5,000 seeds apart or more."""
    runs: list[list[int]] = []
    for seed in sorted(row["seed"] for row in rows):
        if not runs or seed - runs[-1][-1] > 5000:
            runs.append([])
        runs[-1].append(seed)
    return [(run[0], len(run)) for run in runs]


def rows_in(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a job's file; one that was stopped may have left half of one."""
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def follow(files: list[Path], jobs: list[Any]) -> Iterator[dict[str, Any]]:
    """Each line that the jobs write, as it comes, until all of them have ended."""
    positions = [0] * len(files)
    while True:
        ended = all(job.poll() is not None for job in jobs)
        for index, file in enumerate(files):
            text = file.read_text()[positions[index] :] if file.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            positions[index] += len(whole)
            yield from map(json.loads, whole.splitlines())
        if ended:
            return
        time.sleep(0.5)


def show(seed: int) -> int:
    problem = Problem.draw(seed)
    print(problem, flush=True)
    with Runner() as runner:
        outcome = runner.try_problem(problem)
    for name, verdict in outcome.parts.items():
        print(f"{name}: {verdict.outcome} {verdict.kind} [{verdict.stage}] {verdict.text}")
        if verdict.details and verdict.outcome == "bug":
            print(verdict.details)
    return int(outcome.verdict.outcome == "bug")


def keep(seed: int) -> int:
    """Make a failing problem small and write it to the cases, which the gate replays."""
    problem = Problem.draw(seed)
    with Runner() as runner:
        first = runner.try_problem(problem).verdict
        if first.outcome != "bug":
            print(f"problem {seed} is {first.outcome}")
            return 0
        small = shrink(
            problem, lambda one: runner.try_problem(one).verdict.signature == first.signature
        )
        last = runner.try_problem(small).verdict
    print(small)
    print(f"{last.kind} [{last.stage}] {last.text}\n{last.details}")
    (CASES / f"seed-{seed}.json").write_text(small.to_json() + "\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
