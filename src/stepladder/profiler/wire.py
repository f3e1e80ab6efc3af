"""What a process really sent: the kernel's own count over its TCP connections.

gloo talks over TCP, on one machine too, so this counts a collective from below, without asking
whoever wrote it. NCCL takes other ways (NVLink, shared memory) that no such counter sees.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path

SENT_OFFSET = 200  # of tcpi_bytes_sent in Linux's struct tcp_info, since 4.19
INFO_BYTES = 256
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def wire_bytes() -> dict[int, int] | None:
    """Bytes sent so far over each connection now open; None where the kernel does not say."""
    if sys.platform != "linux":
        return None
    counts = (sent_by(int(entry.name)) for entry in Path("/proc/self/fd").iterdir())
    return dict(count for count in counts if count is not None) or None


def sent_since(before: dict[int, int] | None) -> int | None:
    """Bytes sent since a count; one of an earlier world that has closed counts for none."""
    after = wire_bytes()
    if before is None or after is None:
        return None
    return sum(count - before.get(connection, 0) for connection, count in after.items())


def sent_by(descriptor: int) -> tuple[int, int] | None:
    """A connection and the bytes sent over it; None where a descriptor is no TCP connection."""
    try:
        kind = os.fstat(descriptor)
        if not stat.S_ISSOCK(kind.st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.type != socket.SOCK_STREAM or connection.family not in FAMILIES:
                return None
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except OSError:  # a socket of another kind, or gone since it was listed
        return None
    if len(info) < SENT_OFFSET + 8:
        return None
    return kind.st_ino, struct.unpack_from("=Q", info, SENT_OFFSET)[0]
