"""What was given is what the file holds, and its hash, however the bytes arrive."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepladder.checkpoint import hash_bytes
from stepladder.checkpoint import hashing as digest
from stepladder.checkpoint import parallel_writer as stretches
from stepladder.checkpoint.hashing import BLAKE3, SHA256
from stepladder.checkpoint.parallel_writer import WAITING, Stretches


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(digest, "STRETCH", 16)
    monkeypatch.setattr(stretches, "PIECE", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    name=st.sampled_from([BLAKE3, SHA256]),
)
def test_bytes_are_written_and_hashed_however_they_arrive(tmp_path_factory, data, cuts, name):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    path = tmp_path_factory.mktemp("stretches") / "x"
    with (
        ThreadPoolExecutor(3) as pool,
        path.open("wb", buffering=0) as file,
        Stretches(pool, file.fileno(), name) as taking,
    ):
        for first, last in itertools.pairwise(edges):
            taking.add(memoryview(data)[first:last])
        found = taking.result()
    assert path.read_bytes() == data and taking.size == len(data)
    assert found == hash_bytes(data, name)


def test_a_file_that_takes_no_more_says_so_and_is_left_alone(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"")
    with ThreadPoolExecutor(3) as pool, path.open("rb") as closed_to_writing:
        taking = Stretches(pool, closed_to_writing.fileno(), BLAKE3)
        with pytest.raises(OSError, match="Bad file descriptor"), taking:
            for _ in range(WAITING + 2):
                taking.add(memoryview(bytes(16)))
            taking.result()
        assert all(stretch.done() for stretch in taking.begun), "nobody writes on"


def test_a_short_write_is_gone_on_with(tmp_path, monkeypatch):
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: plain(file, data[:2], at))
    with (
        ThreadPoolExecutor(2) as pool,
        (tmp_path / "x").open("wb", buffering=0) as file,
        Stretches(pool, file.fileno(), BLAKE3) as taking,
    ):
        taking.add(memoryview(b"0123456789" * 10))
        taking.result()
    assert (tmp_path / "x").read_bytes() == b"0123456789" * 10
