"""The web server: one thread follows the journals, others answer requests."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from stepladder.dashboard.run_list import RunList
from stepladder.errors import WorldError

from .application import build_application


@dataclass(frozen=True)
class Address:
    """The address to serve on; anywhere but on loopback with a token."""

    host: str = "127.0.0.1"
    port: int = 8686
    token: str | None = None

    @property
    def on_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def guarded(self) -> Address:
        """The same address, with a token if it needs one."""
        if self.on_loopback or self.token:
            return self
        return Address(self.host, self.port, secrets.token_urlsafe(24))

    def url(self, port: int) -> str:
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")


def serve(run_list: RunList, address: Address, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` is called with the URL to open."""
    address = address.guarded()
    listener = listen(address)
    stop = threading.Event()
    reader = threading.Thread(target=run_list.follow_forever, args=(stop,), daemon=True)
    config = uvicorn.Config(
        build_application(run_list, address.token),
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    reader.start()
    try:
        ready(address.url(listener.getsockname()[1]))
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        stop.set()
        listener.close()


def listen(address: Address) -> socket.socket:
    """A listening socket, or an error that says why there is none."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except (OSError, OverflowError) as refused:
        number = getattr(refused, "errno", None) or 0  # negative for name lookup errors
        why = os.strerror(number) if number > 0 else str(refused)
        raise WorldError(
            "watch",
            f"{address.host} port {address.port} cannot be served ({why})",
            "Name another with --port, or --port 0 for any that is free.",
        ) from refused
