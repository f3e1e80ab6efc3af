"""The kernel's count rises by what a process sends, and looking leaves nothing open."""

import os
import socket
import struct
import sys

import pytest

from stepladder.measure import sent_since, wire_bytes
from stepladder.measure.network_bytes import sent_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts, others do not")


def test_the_count_is_what_was_sent_over_tcp_and_nothing_else(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
        with there, here, (tmp_path / "file").open("wb") as file:
            before, open_before = wire_bytes(), len(os.listdir("/proc/self/fd"))
            there.sendall(b"x" * 1000)
            here.sendall(b"y" * 234)
            file.write(b"z" * 5000)
            there.recv(1000)
            assert sent_since(before) == 1234
            assert len(os.listdir("/proc/self/fd")) == open_before
            there.sendall(b"x")  # the descriptors themselves still work


def test_a_connection_that_closed_in_between_takes_nothing_away():
    with socket.create_server(("127.0.0.1", 0)) as server:
        old = socket.create_connection(server.getsockname())
        there = socket.create_connection(server.getsockname())
        _, here = server.accept(), server.accept()[0]
        old.sendall(b"x" * 4000)
        before = wire_bytes()
        old.close()
        here.sendall(b"y" * 99)
        assert sent_since(before) == 99
        there.close(), here.close()


def test_what_was_sent_again_counts_once_and_an_old_kernel_says_nothing():
    whole = bytes(200) + struct.pack("=QQ", 1000, 48) + bytes(40)
    assert sent_once(whole) == 952
    assert sent_once(whole[:208]) is None
