"""A page that follows a run, or opens a finished one: curves, memory, ranks, events, forecast."""

from __future__ import annotations

import argparse
from contextlib import suppress

from stepladder.errors import StepladderError

DEFAULT_PORT = 8686


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, or folders of them, to look at"
    )
    parser.add_argument("--host", default="127.0.0.1", help="another one needs the printed token")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, metavar="N", help="0: any")
    parser.add_argument("--open", action="store_true", help="open it in this machine's browser")


def run(options: argparse.Namespace) -> int:
    from stepladder.dashboard.run_list import RunList

    gallery = RunList(options.runs)
    try:
        from stepladder.dashboard.web.serve import Address, serve
    except ModuleNotFoundError as missing:
        raise StepladderError(
            "watch", f"needs {missing.name}, which is missing", "pip install 'stepladder[watch]'"
        ) from missing

    def ready(url: str) -> None:
        count = len(gallery.runs)
        what = next(iter(gallery.runs)) if count == 1 else f"{count} runs"
        print(f"{what}: {url}  (Ctrl-C ends it)", flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(url)

    with suppress(KeyboardInterrupt):  # the way it is meant to end
        serve(gallery, Address(options.host, options.port), ready)
    return 0
