"""Bring the planner's outputs in docs up to date: `python docs/refresh_planner.py`.

A page shows chosen lines of each command's output. Each is replaced by the line of today's
output that is most like it, in the same order; a line that nothing resembles is reported. The words
between the outputs are people's: read them after a refresh.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from difflib import SequenceMatcher
from pathlib import Path
from textwrap import dedent
from textwrap import indent as indented

from stepladder.cli.commands import plan as command
from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.planner import search
from stepladder.workload import find_facts

PAGES = sorted(Path(__file__).parent.rglob("*.md"))


def output(words: str) -> list[str]:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            command.run(parser.parse_args(shlex.split(words)))
    except PlanError as problem:
        return str(problem).splitlines()
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def likeness(old: str, new: str) -> float:
    """How alike two lines are when their numbers are left out."""
    return SequenceMatcher(None, *(re.sub(r"[\d.,]+", "#", line) for line in (old, new))).ratio()


def refreshed(words: str, shown: str) -> str:
    now, lines = output(words), []
    for old in shown.splitlines():
        best = max(range(len(now)), key=lambda index: likeness(old, now[index]), default=None)
        if best is None or likeness(old, now[best]) < 0.6:
            print(f"nothing like this any more: {words}: {old}")
            lines.append(old)
            continue
        lines.append(now[best])
        now = now[best + 1 :]
    return "".join(f"{line}\n" for line in lines)


def chart_row(row: re.Match[str]) -> str:
    model, cluster, batch = row["model"], row["cluster"], row["batch"]
    best = search(find_facts(model), Cluster.parse(cluster), batch=int(batch)).forecasts[0]
    return (
        f'| `stepladder plan {model} --on "{cluster}" --batch {batch}` | `{best.plan}` '
        f"| {best.mfu:.0%} |"
    )


def refresh(page: str) -> str:
    page = re.sub(
        r"^( *)```console\n *\$ stepladder plan (.*?)\n(.*?)```",
        rewritten,
        page,
        flags=re.DOTALL | re.MULTILINE,
    )
    return re.sub(
        r'\| `stepladder plan (?P<model>\S+) --on "(?P<cluster>.*?)" --batch (?P<batch>\d+)` '
        r"\| `.*?` \| \d+% \|",
        chart_row,
        page,
    )


def rewritten(block: re.Match[str]) -> str:
    """A block with today's lines, as deep in its list as it was."""
    indent, words, shown = block.groups()
    text = f"```console\n$ stepladder plan {words}\n{refreshed(words, dedent(shown))}```"
    return indented(text, indent)


def main() -> None:
    for path in PAGES:
        path.write_text(refresh(path.read_text()))


if __name__ == "__main__":
    main()
