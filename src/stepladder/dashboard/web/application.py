"""What is answered: the page's own files, the list of runs, facts and curves of one.

No word of a request ever becomes part of a path: files and runs are looked up by name among those
that are known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stepladder.dashboard.journal_index import JournalIndex
from stepladder.dashboard.run_facts import facts, headline
from stepladder.dashboard.run_list import Gallery
from stepladder.record import journal_path
from stepladder.record.journal import clean

from .guard import Guard

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POINTS = 600  # of a curve, where the page does not say how wide it is
MOST_POINTS = 4000
FAR = 2**62  # beyond every step


def build_application(gallery: Gallery, token: str | None = None) -> ASGIApp:
    """The page of these runs; a token is what everybody must bring who is not on this machine."""
    page = read_page()

    def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page:
            return PlainTextResponse("There is no such file.", 404)
        return Response(page[name], media_type=TYPES[name.rpartition(".")[2]])

    def runs(request: Request) -> Response:
        return answer([listing(gallery, name) for name in gallery.listed()])

    routes = [
        Route("/", asset),
        Route("/assets/{name}", asset),
        Route("/api/runs", runs),
        Route("/api/facts", of_run(gallery, lambda index, request: facts(index))),
        Route("/api/series", of_run(gallery, series)),
    ]
    return Guard(Starlette(routes=routes), token)


def read_page() -> dict[str, bytes]:
    """The page's files by name, from the installed package."""
    folder = files("stepladder.dashboard").joinpath("page")
    return {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in TYPES
    }


def listing(gallery: Gallery, name: str) -> dict[str, Any]:
    index = gallery.opened(name)
    folder = gallery.runs[name]
    try:
        changed: float | None = journal_path(folder).stat().st_mtime
    except OSError:  # the folder went away: what was read of it is still shown
        changed = None
    return {"name": name, "changed": changed, **(headline(index) if index else {})}


def of_run(
    gallery: Gallery, tell: Callable[[JournalIndex, Request], dict[str, Any]]
) -> Callable[[Request], Response]:
    """Answer about the run that a request names."""

    def endpoint(request: Request) -> Response:
        index = gallery.open(request.query_params.get("run", ""))
        if index is None:
            return PlainTextResponse("There is no such run.", 404)
        return answer(tell(index, request))

    return endpoint


def series(index: JournalIndex, request: Request) -> dict[str, Any]:
    """The asked range of every curve, in as many points as the page can show."""
    first, last = whole(request, "first", 0), whole(request, "last", FAR)
    points = max(2, min(whole(request, "points", POINTS), MOST_POINTS))
    revision = index.revision  # before: what came since is asked for again
    return {"revision": revision, **index.windows(first, last, points)}


def whole(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name, "")
    return min(int(given), FAR) if given.isascii() and given.isdigit() else default


def answer(value: Any) -> Response:
    try:
        text = as_text(value)
    except ValueError:  # a foreign journal may hold numbers that JSON has no word for
        text = as_text(clean(value))
    return Response(text, media_type="application/json")


def as_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
