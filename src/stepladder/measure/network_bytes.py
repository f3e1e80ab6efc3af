"""Bytes that a process sent, as the Linux kernel counts them for its TCP connections.

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

SENT_OFFSET = 200  # of tcpi_bytes_sent in Linux's struct tcp_info, tcpi_bytes_retrans after it
INFO_BYTES = 256
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def wire_bytes() -> dict[int, int] | None:
    """Bytes sent so far over each connection now open; None where the kernel does not say.

    What was sent twice counts once: on a busy machine an acknowledgement comes late even over the
    loopback, and the kernel sends the last packet again.
    """
    if sys.platform != "linux":
        return None
    counts = (sent_by(int(entry.name)) for entry in Path("/proc/self/fd").iterdir())
    return dict(count for count in counts if count is not None) or None


def sent_since(before: dict[int, int] | None) -> int | None:
    """Bytes sent since a count, while no other rank has left: a closed connection counts for none.

    gloo closes its end as soon as the other rank's is closed, so ranks meet after this as well.
    """
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
    count = sent_once(info)
    return None if count is None else (kind.st_ino, count)


def sent_once(info: bytes) -> int | None:
    """Bytes sent, by the kernel's tcp_info, less those that were sent again."""
    if len(info) < SENT_OFFSET + 16:  # a kernel before 4.19
        return None
    sent, again = struct.unpack_from("=QQ", info, SENT_OFFSET)
    return sent - again
