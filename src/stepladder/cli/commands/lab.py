"""Lessons that run on a laptop and end in a checked number.

With no word it lists them. start writes a file with parts to fill in, check examines what you wrote
and says what is wrong with it, run makes the numbers with our solution, solution shows it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json, table
from stepladder.errors import RecordError, StepladderError

if TYPE_CHECKING:
    from stepladder.labs.lab import Lab, Picture

WORDS = ("list", "start", "check", "run", "solution")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", choices=WORDS, default="list")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a lab, as the list names it")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="check: your file")
    parser.add_argument("--force", action="store_true", help="start: overwrite your file")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="check: how long your code may run"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="run: where the picture goes")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    from stepladder.labs.courses import find_lab

    if options.what == "list":
        return list_labs(options)
    if options.name is None:
        raise StepladderError(
            "lab", f"'{options.what}' needs the name of a lab", "'stepladder lab' lists them."
        )
    lab = find_lab(options.name)
    match options.what:
        case "start":
            return start(lab, options)
        case "check":
            return check(lab, options)
        case "run":
            return make_numbers(lab, options)
    return show_solution(lab, options)


def list_labs(options: argparse.Namespace) -> int:
    from stepladder.labs.courses import COURSES

    if options.json:
        as_json({"courses": COURSES})
        return 0
    for course in COURSES:
        rows = [
            [number, lab.name, lab.title, lab.seconds, lab.ranks, lab.library]
            for number, lab in enumerate(course.labs, start=1)
        ]
        columns = ["", "name", "title", "seconds", "ranks", "done properly by"]
        table(course.title, columns, rows)
    print("Begin with 'stepladder lab start NAME'.")
    return 0


def start(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import claim, parts_left, starter

    path = options.file or Path(f"{lab.stem}.py")
    if path.exists() and not options.force:
        raise RecordError(
            "file", f"{path} is there already", "--force overwrites it; or name another file."
        )
    source = lab.lesson.read_text(encoding="utf-8")
    text = starter(source)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise RecordError(
            "file", f"{path} cannot be written ({refused.strerror})", "Name another file."
        ) from refused
    parts = [{"line": line, "part": words} for line, words in parts_left(text)]
    command = f"stepladder lab check {lab.name}" + (f" {path}" if options.file else "")
    if options.json:
        as_json({"lab": lab.name, "file": str(path), "parts": parts, "check": command})
        return 0
    print(f"{lab.title}\n\nClaim: {claim(source)}\n\nWritten: {path}. Your parts:")
    for part in parts:
        print(f"  line {part['line']}: {part['part']}")
    print(f"\nThen: {command}")
    return 0


def check(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import judge, parts_left

    limit = max(30.0, 10.0 * lab.seconds) if options.limit is None else options.limit
    if limit < 1:
        raise StepladderError("limit", f"{limit:g} seconds is no time", "Give 1 or more.")
    path = options.file or Path(f"{lab.stem}.py")
    if not path.is_file():
        raise RecordError(
            "file", f"{path} is not here", f"'stepladder lab start {lab.name}' writes it."
        )
    found = []
    for finding in judge(lab, path, limit_seconds=limit, quiet=options.json):
        found.append(finding)
        if not options.json:
            print(f"{'passed' if finding.passed else 'FAILED'}  {finding.claim}", flush=True)
            for line in finding.message.splitlines():
                print(f"        {line}")
    passed = all(finding.passed for finding in found)
    left = parts_left(path.read_text(encoding="utf-8"))
    if options.json:
        as_json({"lab": lab.name, "passed": passed, "findings": found, "left": left})
        return 0 if passed else 1
    if passed:
        print(f"\nPassed. Done properly by {lab.library}.")
        return 0
    for where, words in left:
        print(f"to do   line {where}: {words}")
    print(
        f"\nNot yet. Change {path} and check again; 'stepladder lab solution {lab.name}' is ours."
    )
    return 1


def show_solution(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import solution

    text = solution(lab.lesson.read_text(encoding="utf-8"))
    if options.json:
        as_json({"lab": lab.name, "solution": text})
    else:
        print(text, end="")
    return 0


def make_numbers(lab: Lab, options: argparse.Namespace) -> int:
    from stepladder.labs import claim
    from stepladder.labs.grading.examine import numbers

    rows = numbers(lab)
    picture = draw(lab, rows, options.plot) if lab.picture else None
    if options.json:
        as_json({"lab": lab.name, "rows": rows, "plot": picture and str(picture)})
        return 0
    print(f"Claim: {claim(lab.lesson.read_text(encoding='utf-8'))}\n")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table(lab.title, columns, [[row.get(column, "") for column in columns] for row in rows])
    if picture:
        print(f"Picture: {picture}")
    return 0


def draw(lab: Lab, rows: Sequence[Mapping[str, Any]], path: Path | None) -> Path:
    """The lab's numbers as lines, or as bars where what is compared has names."""
    from stepladder.cli.results.plots import figure, store

    spec = lab.picture
    assert spec is not None
    if spec.shade:
        return draw_cells(lab, spec, rows, path)
    drawn, panels = figure(max(4.0 * len(spec.y), 6.0), 4.0, panels=len(spec.y))
    for axes, column in zip([panels] if len(spec.y) == 1 else panels, spec.y):
        for name in dict.fromkeys(row.get(spec.by) for row in rows):
            mine = [row for row in rows if row.get(spec.by) == name and column in row]
            xs, ys = [row[spec.x] for row in mine], [row[column] for row in mine]
            if any(isinstance(x, str) for x in xs):
                axes.bar(xs, ys, label=name)
                axes.tick_params(axis="x", rotation=20)
            else:
                axes.plot(xs, ys, "o-", markersize=3, label=name)
        axes.set(xlabel=spec.x.replace("_", " "), ylabel=column.replace("_", " "))
        if "x" in spec.log:
            axes.set_xscale("log", base=2)
        if "y" in spec.log:
            axes.set_yscale("log")
        if spec.by:
            axes.legend(frameon=False)
    drawn.suptitle(lab.title)
    return store(drawn, path or Path(f"{lab.stem}.png"))


def draw_cells(
    lab: Lab, spec: Picture, rows: Sequence[Mapping[str, Any]], path: Path | None
) -> Path:
    """The lab's numbers written in cells, a panel for each moment."""
    from stepladder.cli.results.plots import figure, store

    moments = list(dict.fromkeys(row[spec.by] for row in rows))
    most = max(row[spec.shade] for row in rows)
    drawn, panels = figure(1.8 * len(moments) + 0.6, 2.6, panels=len(moments))
    for axes, moment in zip([panels] if len(moments) == 1 else panels, moments):
        mine = [row for row in rows if row[spec.by] == moment]
        wide, high = (1 + max(row[column] for row in mine) for column in (spec.x, spec.y[0]))
        cells = [[0] * wide for _ in range(high)]
        for row in mine:
            x, y, value = row[spec.x], row[spec.y[0]], row[spec.shade]
            cells[y][x] = value
            colour = "white" if value > 0.7 * most else "black"
            axes.text(x, y, f"{value:g}", ha="center", va="center", color=colour)
        axes.imshow(cells, cmap="Blues", vmin=0, vmax=1.2 * most)
        axes.set(title=f"{spec.by} {moment}", xticks=range(wide), yticks=range(high))
        axes.set(xlabel=spec.x, ylabel=spec.y[0] if moment == moments[0] else "")
        axes.grid(visible=False)
    drawn.suptitle(f"{lab.title}: {spec.shade.replace('_', ' ')}")
    return store(drawn, path or Path(f"{lab.stem}.png"))
