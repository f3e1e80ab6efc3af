"""Ports that nobody else takes between their choice and their use.

A port that the kernel gives out (`bind` to 0) and that is let go again may be the next program's: a
test then fails once in a hundred runs. These lie below what it gives out by itself (from 32768 on
Linux, from 49152 elsewhere), each process goes through them from a place of its own, and names none
twice.
"""

import os
import socket
from itertools import count

FIRST, MANY = 10_000, 19_000
TURN = count(os.getpid() * 577)


def free_port() -> int:
    """A port that no program has."""
    for turn in TURN:
        port = FIRST + turn % MANY
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("numbers do not end")
