"""Prometheus: the latest metrics, served on a port of this machine."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepladder.errors import PlanError

from .scalars import scalars
from .targets import FIELD

TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Prometheus:
    name = "prometheus"

    def __init__(self, run: str, host: str, port: int) -> None:
        self._label = re.sub(r'([\\"])', r"\\\1", run).replace("\n", r"\n")
        self._gauges: dict[str, float] = {}
        self._counters = {"steps_reported": 0, "events": 0, "saves": 0, "starts": 0}
        self._lock = threading.Lock()
        try:
            self._server = ThreadingHTTPServer((host, port), handler(self))
        except OSError as refused:
            raise PlanError(
                FIELD,
                f"prometheus cannot be served on {host} port {port} ({refused.strerror})",
                "Name another port, or 0 for any that is free.",
            ) from refused
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.address = f"http://{host or 'localhost'}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def write(self, kind: str, entry: dict[str, Any]) -> None:
        counted = {"step": "steps_reported", "event": "events", "save": "saves", "start": "starts"}
        with self._lock:
            if kind in counted:
                self._counters[counted[kind]] += 1
            if kind == "step" and isinstance(entry.get("step"), int):
                self._gauges["step"] = entry["step"]
            self._gauges.update(scalars(kind, entry))

    def text(self) -> str:
        """All metrics, in Prometheus's text format."""
        with self._lock:
            gauges, counters = dict(self._gauges), dict(self._counters)
        lines = []
        for name, value in sorted(gauges.items()):
            lines += self._line(metric_name(name), "gauge", value)
        for name, count in counters.items():
            lines += self._line(f"{metric_name(name)}_total", "counter", count)
        return "\n".join(lines) + "\n"

    def _line(self, name: str, kind: str, value: float) -> list[str]:
        return [f"# TYPE {name} {kind}", f'{name}{{run="{self._label}"}} {value!r}']

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def metric_name(name: str) -> str:
    return "stepladder_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def handler(source: Prometheus) -> type[BaseHTTPRequestHandler]:
    """A request handler that serves /metrics."""

    class Answer(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] in ("/metrics", "/")
            body = source.text().encode() if known else b"Ask for /metrics.\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Answer
