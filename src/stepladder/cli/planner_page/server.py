"""The planner page's server: Python's own, on this machine's loopback address alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stepladder.errors import WorldError
from stepladder.palette import style_sheet

from .answers import ANSWERS, answer, choices

HOST = "127.0.0.1"
PACKAGES = ("stepladder.dashboard", "stepladder.cli.planner_page")  # one look for both pages
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(port: int, start: Mapping[str, str], ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the address to open."""
    try:
        server = ThreadingHTTPServer((HOST, port), handler_of(start))
    except (OSError, OverflowError) as refused:
        number = getattr(refused, "errno", None)
        why = os.strerror(number) if number else str(refused)
        raise WorldError(
            "page",
            f"{HOST} port {port} cannot be served ({why})",
            "Name another with --port, or --port 0 for any that is free.",
        ) from refused
    with server:
        ready(f"http://{HOST}:{server.server_address[1]}/")
        server.serve_forever()


def read_page() -> dict[str, bytes]:
    """The page's files by their names."""
    folders = [files(package).joinpath("page") for package in PACKAGES]
    shown = [one for folder in folders for one in folder.iterdir() if kind(one.name) in TYPES]
    page = {one.name: one.read_bytes() for one in shown}  # the planner's index.html is the later
    return {**page, "palette.css": style_sheet().encode()}


def kind(name: str) -> str:
    return name.rpartition(".")[2]


def handler_of(start: Mapping[str, str]) -> type[BaseHTTPRequestHandler]:
    """A handler of requests to a page that begins with these fields."""
    page = read_page()

    class Handler(BaseHTTPRequestHandler):
        """Files and answers are looked up by name: no part of a request becomes part of a path."""

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            name = url.path.removeprefix("/") or "index.html"
            question = name.removeprefix("api/")
            if not self.is_local():
                self.reply(421, "text/plain", b"Unknown host name.")
            elif name in page:
                self.reply(200, TYPES[kind(name)], page[name])
            elif name == "api/choices":
                self.reply_json(choices(start))
            elif question in ANSWERS and question != name:
                self.reply_json(answer(question, dict(parse_qsl(url.query, True))))
            else:
                self.reply(404, "text/plain", b"There is no such page.")

        def is_local(self) -> bool:
            """Whether it was asked for by this address: a name pointed here is no user's."""
            name = self.headers.get("Host", "").rpartition(":")[0]
            return name in (HOST, "localhost")

        def reply_json(self, value: Any) -> None:
            self.reply(200, "application/json", json.dumps(value, allow_nan=False).encode())

        def reply(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            sent = {"Content-Type": content_type, "Content-Length": str(len(body)), **HEADERS}
            for name, value in sent.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal shows the address alone."""

    return Handler
