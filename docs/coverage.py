"""Writes docs/coverage.md: what lectures on training at scale describe, each with its command.

    python docs/coverage.py              run every command, keep what it showed, write the page
    python docs/coverage.py --only NAME  run one row (may be repeated); the others stay as they are
    python docs/coverage.py --check      run nothing: commands can be typed, links lead somewhere

A row is one entry in docs/coverage_rows. Each command runs in a folder of its own, has to end with
the exit code that its row names, and to show a line that its row describes. What it showed is kept
in benchmarks/results/coverage.json, with date and machine.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coverage_rows import PARTS, Part, Row

from stepladder.cli.command_parser import CommandParser
from stepladder.cli.main import COMMANDS, split_settings
from stepladder.errors import StepladderError
from stepladder.labs import all_labs

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGE, RESULTS = DOCS / "coverage.md", ROOT / "benchmarks" / "results" / "coverage.json"
LIMIT_SECONDS = 600  # on a machine that is busy with other things
WIDTH, MOST_LINES = 120, 100  # letters of a line that is kept, lines of a command
INTRO = """\
# What lectures describe, and the command that shows it

{count} things that a lecture series on training at scale describes, in its order. Each has the page
that explains it, a lab where there is one, a command that shows it on a laptop without a GPU, and a
piece of what the command printed. `python docs/coverage.py` runs all of them and writes this page;
it fails if a command fails or no longer shows what its row says. Times among what is shown come
from a machine that other work kept busy, and compare nothing. [The course](course.md) takes the
same way in units, with exercises and graded answers.
"""


def all_rows() -> list[Row]:
    return [row for part in PARTS for row in part.rows]


def read_results() -> dict[str, Any]:
    """What rows showed, of those whose command is still the one that was run."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
    commands = {row.name: row.command for row in all_rows()}
    rows = kept["rows"].items()
    current = {name: one for name, one in rows if one["command"] == commands.get(name)}
    return {**kept, "rows": current}


def run_row(row: Row) -> dict[str, Any]:
    """Run the row's command: what it showed, and a `problem` if that is not what the row says."""
    with tempfile.TemporaryDirectory() as folder:
        said = ""
        for command, wanted in ((row.before, 0), (row.command, row.exit_code)):
            if not command:
                continue
            code, said = run_command(command, Path(folder))
            if code != wanted:
                return {"problem": f"exit {code}, not {wanted}: {command}\n{said[-2000:]}"}
    found = {
        "command": row.command,
        "output": plain_lines(said),
        "date": datetime.date.today().isoformat(),
    }
    if not shown_lines(row, found["output"]):
        found["problem"] = f"nothing matches {row.shows!r}: {row.command}\n{said[-2000:]}"
    return found


def run_command(command: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command as one types it, with labs and caches in the folder."""
    program, *words = shlex.split(command)
    if program == "stepladder":
        words = ["-m", "stepladder.cli.main", *words]
    elif words[0].endswith(".py"):
        words[0] = str(ROOT / words[0])
    path = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    path = [*dict.fromkeys(filter(None, path))]
    home = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG")}
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, text=True, timeout=LIMIT_SECONDS, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **home, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return -1, f"not done in {LIMIT_SECONDS} s\n{late.stdout or ''}"
    return done.returncode, done.stdout


def plain_lines(output: str) -> list[str]:
    """Lines without colours, rules, the spaces that make columns, and this machine's folders."""
    output = re.sub(r"(?<![\w:/.])/(?:[\w.@-]+/)+", "", re.sub(r"\x1b\[[0-9;]*m", "", output))
    lines = [" ".join(line.split()) for line in output.splitlines()]
    kept = [line for line in lines if line.strip("─━-= ") and not line.startswith("Picture: ")]
    return [line[:WIDTH] for line in kept][:MOST_LINES]


def shown_lines(row: Row, output: list[str]) -> list[str]:
    """The line that the row describes, and those after it that it asks for."""
    for at, line in enumerate(output):
        if re.search(row.shows, line):
            return output[at : at + row.lines]
    return []


def machine() -> str:
    import torch  # noqa: PLC0415 (the check of the page needs none)

    cores = os.cpu_count()
    return f"CPU, {cores} cores, {platform.machine()}, gloo, torch {torch.__version__}"


def page_text(kept: dict[str, Any]) -> str:
    parts = [INTRO.format(count=len(all_rows()))]
    parts += [part_text(part, kept["rows"]) for part in PARTS]
    dates = sorted({one["date"] for one in kept["rows"].values()})
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never"
    return "\n".join([*parts, f"Run on {when}: {kept.get('machine', 'unknown')}.\n"])


def part_text(part: Part, kept: dict[str, Any]) -> str:
    lines = [f"## {part.title}\n", "| what | page | lab | command | shows |", "|---" * 5 + "|"]
    for row in part.rows:
        shown = shown_lines(row, kept[row.name]["output"]) if row.name in kept else []
        before = f"after {code(row.before)}: " if row.before else ""
        cells = [
            row.what,
            f"[{title(row.page)}]({row.page})",
            f"`{row.lab}`" if row.lab else "",
            f"{before}{code(row.command)}",
            "<br>".join(map(code, shown)) or "not run yet",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def code(words: str) -> str:
    return "`" + words.replace("`", "'").replace("|", "\\|") + "`"


def title(link: str) -> str:
    """The heading that a link leads to."""
    page, _, anchor = link.partition("#")
    return headings(DOCS / page).get(anchor, page)


def headings(page: Path) -> dict[str, str]:
    """The headings of a page by their anchors; the first one has none."""
    found: dict[str, str] = {}
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = line.replace("`", "")
        kept = "".join(one for one in words.lower() if one.isalnum() or one in " -_")
        found[re.sub(r"[\s-]+", "-", kept.strip()) if found else ""] = words
    return found


def problems() -> list[str]:
    """What is wrong with the rows and the page, without running anything."""
    rows, kept = all_rows(), read_results()["rows"]
    names = [row.name for row in rows]
    found = [f"{name}: two rows have this name" for name in set(names) if names.count(name) > 1]
    labs = {lab.name for lab in all_labs()}
    for row in rows:
        page, _, anchor = row.page.partition("#")
        if not (DOCS / page).is_file():
            found.append(f"{row.name}: there is no page {page}")
        elif anchor and anchor not in headings(DOCS / page):
            found.append(f"{row.name}: {page} has no heading {anchor}")
        if row.lab and row.lab not in labs:
            found.append(f"{row.name}: there is no lab {row.lab}")
        typed = (row.before, row.command) if row.before else (row.command,)
        found += [f"{row.name}: {wrong}" for wrong in map(unreadable, typed) if wrong]
        if row.name in kept and not shown_lines(row, kept[row.name]["output"]):
            found.append(f"{row.name}: nothing of what it printed matches {row.shows!r}")
    return found


def unreadable(command: str) -> str:
    """Why a command cannot be typed; nothing if it can."""
    program, *words = shlex.split(command)
    if program == "python":
        if words[0] == "-c":
            compile(words[1], command, "exec")
            return ""
        return "" if (ROOT / words[0]).is_file() else f"there is no {words[0]}"
    if program != "stepladder" or words[0] not in COMMANDS:
        return f"'{program} {words[0]}' is no command"
    parser = CommandParser(prog=words[0], allow_abbrev=False)
    importlib.import_module(f"stepladder.cli.commands.{words[0]}").configure(parser)
    try:
        parser.parse_args(split_settings(words[1:])[0])
    except (StepladderError, SystemExit) as refused:
        return f"{command}: {refused}"
    return ""


def run_rows(rows: Sequence[Row], kept: dict[str, Any]) -> list[str]:
    """Run rows one after the other; each result is kept at once. The rows that failed."""
    failed = []
    for number, row in enumerate(rows, start=1):
        print(f"[{number}/{len(rows)}] {row.name}: {row.command[:90]}", flush=True)
        result = run_row(row)
        problem = result.pop("problem", "")
        if problem:
            failed.append(row.name)
            print(f"  FAILED: {problem}", flush=True)
        else:
            shown = shown_lines(row, result["output"])[0]
            print(f"  {shown}", flush=True)
        if "output" not in result:
            continue
        kept["rows"][row.name] = result  # another `shows` can be held against it
        RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return failed


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", choices=[*names_of_rows()])
    parser.add_argument("--check", action="store_true", help="run nothing")
    options = parser.parse_args(words)
    if not options.check:
        rows = [row for row in all_rows() if not options.only or row.name in options.only]
        kept = {**read_results(), "machine": machine()}
        failed = run_rows(rows, kept)
        PAGE.write_text(page_text(kept), encoding="utf-8")
        print(f"{len(rows) - len(failed)} of {len(rows)} rows show what they say.", *failed)
        return 1 if failed else 0
    wrong = problems()
    if page_text(read_results()) != PAGE.read_text(encoding="utf-8"):
        wrong.append("docs/coverage.md is not what its rows make: python docs/coverage.py --only …")
    print(
        *(wrong or [f"{len(all_rows())} rows: commands can be typed, links lead somewhere."]),
        sep="\n",
    )
    return 1 if wrong else 0


def names_of_rows() -> list[str]:
    return [row.name for row in all_rows()]


if __name__ == "__main__":
    raise SystemExit(main())
