"""Write one self-contained page of a run: plan, forecast, result, environment, plots; and PNGs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json
from stepladder.errors import RecordError

if TYPE_CHECKING:
    from stepladder.dashboard import JournalIndex


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="RUN/report.html if not said")
    parser.add_argument("--png", metavar="DIR", help="where the plots go; RUN/report if not said")
    parser.add_argument("--json", action="store_true", help="print what the page says as JSON")


def run(options: argparse.Namespace) -> int:
    from stepladder.cli.results.report_page import build_page
    from stepladder.cli.results.report_plots import draw_plots
    from stepladder.dashboard.run_facts import run_facts

    index = read_run(Path(options.run))
    if not index.entries:
        raise RecordError(
            "run folder",
            f"{index.path} holds no entry that can be read ({index.lines.bad} lines that are none)",
            "Name a folder that a run wrote, such as runs/first.",
        )
    if not (options.output and options.png) and not os.access(index.folder, os.W_OK):
        raise RecordError(
            "run folder",
            f"{index.folder} may not be written by this user, and the page would go there",
            "Name other places: -o report.html --png plots.",
        )
    page = Path(options.output or index.folder / "report.html")
    plots = draw_plots(index, Path(options.png or index.folder / "report"))
    said = run_facts(index)
    name = index.folder.resolve().name
    write(page, build_page(name, said, plots, index.samples.picture))
    if options.json:
        as_json({"report": str(page), "plots": [str(plot.path) for plot in plots], **said})
    else:
        print(f"{page} ({page.stat().st_size / 1024:.0f} KiB) and {len(plots)} plots in PNG")
    return 0


def read_run(folder: Path) -> JournalIndex:
    """All of a run's journal, with a bar while it is long."""
    from stepladder.cli.results.tables import progress
    from stepladder.dashboard import JournalIndex
    from stepladder.dashboard.run_list import check_run

    check_run(folder)
    index = JournalIndex(folder)
    for _ in progress(blocks(index), "reading the journal"):
        pass
    return index


def blocks(index: JournalIndex) -> Any:
    while index.follow():
        yield index.read_share


def write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except (OSError, ValueError) as refused:
        why = getattr(refused, "strerror", None) or str(refused)
        raise RecordError(
            "report", f"{path} cannot be written ({why})", "Name another file with -o."
        ) from refused
