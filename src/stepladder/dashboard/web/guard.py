"""Who may read the page.

On loopback anybody on this machine may, under a loopback name: a page elsewhere that had its own
name pointed here (DNS rebinding) sends that name and is refused. Bound anywhere else a token is
needed; it comes once in the address, becomes a cookie that scripts cannot read, and is gone from
the address bar.
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
    """Stands before the application and lets in who may come in."""

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
        if same(request.cookies.get(COOKIE, ""), self.token):
            return None
        if same(request.query_params.get("token", ""), self.token):
            return self.welcome(request)
        return PlainTextResponse("Open the address that 'stepladder watch' printed.", 401)

    def welcome(self, request: Request) -> Response:
        rest = [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]
        target = f"/{'?' if rest else ''}{urlencode(rest)}"
        answer = RedirectResponse(target, 303)
        assert self.token is not None
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", path="/")
        return answer


def same(given: str, token: str) -> bool:
    """Whether they are alike, in a time that does not tell how far."""
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
