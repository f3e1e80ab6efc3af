"""The web application: the page's files, the list of runs, and the facts and curves of one.

No part of a request ever becomes part of a path: files and runs are looked up by name among those
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
from stepladder.dashboard.run_facts import headline, run_facts
from stepladder.dashboard.run_list import RunList, state_from_journal_tail
from stepladder.palette import style_sheet
from stepladder.record import journal_path
from stepladder.record.journal import to_json_safe

from .guard import Guard

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POINTS = 600  # of a curve, if the page does not state its width
MOST_POINTS = 4000
MAX_STEP = 2**62


def build_application(run_list: RunList, token: str | None = None) -> ASGIApp:
    """The application for these runs; with a token, every request must present it."""
    page = read_page()

    def asset(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page:
            return PlainTextResponse("There is no such file.", 404)
        return Response(page[name], media_type=TYPES[name.rpartition(".")[2]])

    def runs(request: Request) -> Response:
        return json_response([listing(run_list, name) for name in run_list.folders()])

    routes = [
        Route("/", asset),
        Route("/assets/{name}", asset),
        Route("/api/runs", runs),
        Route("/api/facts", run_endpoint(run_list, lambda index, request: run_facts(index))),
        Route("/api/series", run_endpoint(run_list, series)),
        Route("/api/picture", picture_endpoint(run_list)),
    ]
    return Guard(Starlette(routes=routes), token)


def read_page() -> dict[str, bytes]:
    """The page's files by name, from the installed package."""
    folder = files("stepladder.dashboard").joinpath("page")
    found = {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in TYPES
    }
    return {**found, "palette.css": style_sheet().encode()}


def listing(run_list: RunList, name: str) -> dict[str, Any]:
    index = run_list.if_open(name)
    folder = run_list.runs[name]
    try:
        changed: float | None = journal_path(folder).stat().st_mtime
    except OSError:  # the folder was deleted; what was read is still shown
        changed = None
    known = headline(index) if index else {"state": state_from_journal_tail(folder)}
    return {"name": name, "changed": changed, **known}


def run_endpoint(
    run_list: RunList, tell: Callable[[JournalIndex, Request], dict[str, Any]]
) -> Callable[[Request], Response]:
    """An endpoint that answers for the run that a request names."""

    def endpoint(request: Request) -> Response:
        index = run_list.open(request.query_params.get("run", ""))
        if index is None:
            return PlainTextResponse("There is no such run.", 404)
        return json_response(tell(index, request))

    return endpoint


def picture_endpoint(run_list: RunList) -> Callable[[Request], Response]:
    """The endpoint of a picture that a run's loop kept."""

    def endpoint(request: Request) -> Response:
        index = run_list.open(request.query_params.get("run", ""))
        name = request.query_params.get("name", "")
        kept = index and index.samples.picture(name, integer_parameter(request, "step", -1))
        if not kept:
            return PlainTextResponse("There is no such picture.", 404)
        return Response(kept, media_type="image/png")

    return endpoint


def series(index: JournalIndex, request: Request) -> dict[str, Any]:
    """The requested range of every curve, in as many points as the page can show."""
    first, last = (
        integer_parameter(request, "first", 0),
        integer_parameter(request, "last", MAX_STEP),
    )
    points = max(2, min(integer_parameter(request, "points", POINTS), MOST_POINTS))
    revision = index.revision  # read first, so that later lines are requested again
    return {"revision": revision, **index.windows(first, last, points)}


def integer_parameter(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name, "")
    return min(int(given), MAX_STEP) if given.isascii() and given.isdigit() else default


def json_response(value: Any) -> Response:
    try:
        text = to_json(value)
    except ValueError:  # a journal may contain NaN or Inf
        text = to_json(to_json_safe(value))
    return Response(text, media_type="application/json")


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
