"""A slow network on one machine: two network namespaces joined by a bandwidth-limited link.

Linux alone has them, and only root may make them. Whoever asks gets two namespaces, each with one
end of a virtual cable whose bandwidth the kernel limits (a token bucket), and nothing is left
behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from types import FrameType, TracebackType
from typing import Any

from stepladder.errors import WorldError

BURST, LATENCY = "256kb", "200ms"  # of the token bucket: small beside a step's gradients
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class SlowLink:
    """Context in which two namespaces can reach each other; `rate` as `tc` writes it, or None."""

    def __init__(self, rate: str | None) -> None:
        self.rate = rate
        self.names = tuple(f"sl{os.getpid() % 100000}-{end}" for end in "ab")
        self.devices = tuple(f"sl{os.getpid() % 100000}{end}" for end in "ab")
        self.addresses = ("10.213.77.1", "10.213.77.2")
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> SlowLink:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {one: signal.signal(one, leave) for one in ENDING}
        try:
            self._lay()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def inside(self, end: int) -> list[str]:
        """The words that start a program at one end."""
        return ["ip", "netns", "exec", self.names[end]]

    def _lay(self) -> None:
        for name in self.names:
            command("ip", "netns", "add", name)
        first, second = self.devices
        command("ip", "link", "add", first, "type", "veth", "peer", "name", second)
        for name, device, address in zip(self.names, self.devices, self.addresses):
            command("ip", "link", "set", device, "netns", name)
            within = ("ip", "-n", name)
            command(*within, "addr", "add", f"{address}/24", "dev", device)
            command(*within, "link", "set", device, "up")
            command(*within, "link", "set", "lo", "up")
            if self.rate:
                bucket = ("tbf", "rate", self.rate, "burst", BURST, "latency", LATENCY)
                command("tc", "-n", name, "qdisc", "add", "dev", device, "root", *bucket)

    def _remove(self) -> None:
        for one in self._handlers:  # a second signal leaves nothing behind either
            signal.signal(one, signal.SIG_IGN)
        for name in self.names:  # a device goes with the namespace it is in
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        first = ["ip", "link", "del", self.devices[0]]
        subprocess.run(first, capture_output=True, check=False)
        for one, handler in self._handlers.items():
            signal.signal(one, handler)


def leave(number: int, frame: FrameType | None) -> None:
    """End the program through its `finally`s: a signal alone would leave the namespaces there."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def command(*words: str) -> None:
    if shutil.which(words[0]) is None:
        raise WorldError("link", f"there is no '{words[0]}' to make one", "Install iproute2.")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no reason given"
        problem = f"this kernel or user may not make one ({why})"
        raise WorldError("link", problem, "Run as root on Linux, outside a locked container.")
