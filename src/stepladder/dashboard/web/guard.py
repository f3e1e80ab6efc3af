"""Access control of the dashboard.

On loopback every user of this machine may read it, under a loopback host name: a foreign web page
whose name was pointed here (DNS rebinding) sends another host name and is refused. Bound to any
other address a token is required; it comes once in the URL, is stored in an HttpOnly cookie, and is
removed from the address bar by a redirect.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "stepladder-token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS = {
    b"content-security-policy": b"default-src 'self'; img-src 'self' data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class Guard:
    """ASGI middleware that refuses requests without access."""

    application: ASGIApp
    token: str | None  # None: loopback only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        answer = self.refuse(Request(scope)) or self.application
        await answer(scope, receive, with_headers(send))

    def refuse(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("This page is only read.", 405)
        if self.token is None:
            return None if is_loopback(request) else PlainTextResponse("Unknown host name.", 421)
        if constant_time_equal(request.cookies.get(COOKIE, ""), self.token):
            return None
        if constant_time_equal(request.query_params.get("token", ""), self.token):
            return self.welcome(request)
        return PlainTextResponse("Open the address that 'stepladder watch' printed.", 401)

    def welcome(self, request: Request) -> Response:
        rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
        target = f"/{'?' if rest else ''}{urlencode(rest)}"
        answer = RedirectResponse(target, 303)
        assert self.token is not None
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
        return answer


def constant_time_equal(given: str, token: str) -> bool:
    """Compare in constant time, so that timing does not reveal the token."""
    return hmac.compare_digest(given.encode(), token.encode())


def is_loopback(request: Request) -> bool:
    name, colon, port = request.headers.get("host", "").rpartition(":")
    if not colon or not port.isdigit():  # no port, or the last part of a bare IPv6 name
        name = request.headers.get("host", "")
    return name.lower() in LOOPBACK


def with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *HEADERS.items()]
        await send(message)

    return sending
