"""Known defects planted back one at a time: does the fuzzer find them by itself?

Copies `src` and `tests`, undoes one repair by changing a line, and tries generated problems until
one is a bug. To save time only problems that have a place for the defect are tried (spectral norm
where it concerns spectral norm), out of the first 5,000: the whole draw would try them too. The
table is written to benchmarks/results/fuzz_planted.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from .planted_defects import DEFECTS, Defect

ROOT = Path(__file__).parents[2]
KEPT = "planted.jsonl"
DRAW = 5_000  # seeds, as many as the whole draw has
TABLE = ROOT / "benchmarks" / "results" / "fuzz_planted.md"


@dataclass(frozen=True)
class Found:
    """How a planted defect fared."""

    defect: Defect
    pairs: int  # tried until it was found, or all of them
    seed: int | None
    text: str
    seconds: float


def main(pairs: int, seed: int, only: str, jobs: int, keep: Path | None) -> int:
    chosen = [one for one in DEFECTS if only in one.words]
    found = list(kept_in(keep))
    known = {one.defect.words for one in found}
    with ThreadPoolExecutor(jobs) as pool:
        left = [defect for defect in chosen if defect.words not in known]
        trials = [pool.submit(find, defect, pairs, seed) for defect in left]
        for trial in as_completed(trials):
            found.append(last := trial.result())
            seen = f"seed {last.seed}: {last.text[:120]}" if last.seed is not None else "NOT FOUND"
            print(f"{last.defect.words}: {seen} ({last.pairs} pairs, {last.seconds:.0f} s)",
                  flush=True)  # fmt: skip
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                row = {**asdict(last), "defect": last.defect.words}
                with (keep / KEPT).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if not only:  # after each one: the whole list takes an hour or more
                found.sort(key=lambda one: chosen.index(one.defect))
                TABLE.write_text(table(found, pairs))
    caught = sum(one.seed is not None for one in found)
    print(f"{caught} of {len(found)} found")
    return 0 if caught >= 0.8 * len(found) else 1


def kept_in(folder: Path | None) -> Iterator[Found]:
    """What an earlier run found, which is not tried again."""
    by_words = {defect.words: defect for defect in DEFECTS}
    if folder and (folder / KEPT).exists():
        for line in (folder / KEPT).read_text().splitlines():
            row = json.loads(line)
            if row["defect"] in by_words:
                yield Found(**{**row, "defect": by_words[row["defect"]]})


def find(defect: Defect, pairs: int, seed: int) -> Found:
    """Try problems on a copy with the defect until one of them is a bug."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        plant(defect, tree)
        rows = tree / "rows" / "found.jsonl"  # in a folder of its own: a job reads all rows there
        rows.parent.mkdir()
        command = [sys.executable, "-m", "tests.fuzz", "--rows", str(rows), "--first"]
        command += ["--seed", str(seed), "--pairs", str(DRAW), "--most", str(pairs)]
        command += [word for pattern in defect.where for word in ("--matching", pattern)]
        path = os.pathsep.join(filter(None, [str(tree / "src"), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=True)
        read = [json.loads(line) for line in rows.read_text().splitlines()]
    bugs = [row for row in read if row["outcome"] == "bug"]
    first = bugs[0] if bugs else {"seed": None, "kind": "", "text": ""}
    text = f"{first['kind']}: {first['text']}" if bugs else ""
    return Found(defect, len(read), first["seed"], text, time.monotonic() - began)


def plant(defect: Defect, tree: Path) -> None:
    """A copy of the project with the defect in it."""
    for name in ("src", "tests"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for change in defect.changes:
        file = tree / "src" / "stepladder" / change.file
        text = file.read_text()
        assert change.right in text, f"{change.file} has no {change.right!r}"
        file.write_text(text.replace(change.right, change.wrong))


def table(found: list[Found], pairs: int) -> str:
    caught = sum(one.seed is not None for one in found)
    lines = [
        "# Planted defects",
        "",
        f"`python -m tests.fuzz --planted --pairs {pairs}`, {time.strftime('%Y-%m-%d')}. Each "
        f"repair is undone in a copy; the fuzzer then finds {caught} of {len(found)} tried "
        f"({len(DEFECTS)} can be planted).",
        "",
        f"Tried are, of {DRAW:,} problems, those that have a place for the defect, {pairs} at "
        "most; each is clean without it.",
        "",
        "| defect | found | seed | after pairs | as |",
        "|---|---|---|---|---|",
    ]
    for one in found:
        answer = "**no** | " if one.seed is None else f"yes | {one.seed}"
        text = one.text.partition("\n")[0][:100].replace("|", "/")
        lines.append(f"| {one.defect.words} | {answer} | {one.pairs} | {text} |")
    return "\n".join(lines) + "\n"
