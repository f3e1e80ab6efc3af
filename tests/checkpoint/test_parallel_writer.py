"""What was given is what the file holds, and its hash, however the bytes arrive."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepladder.checkpoint import hash_bytes, parallel_writer
from stepladder.checkpoint import hashing as digest
from stepladder.checkpoint.hashing import BLAKE3, SHA256
from stepladder.checkpoint.parallel_writer import MAX_PENDING, ChunkWriter


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(digest, "CHUNK_BYTES", 16)
    monkeypatch.setattr(parallel_writer, "BLOCK_BYTES", 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(0, 300), max_size=5),
    name=st.sampled_from([BLAKE3, SHA256]),
)
def test_bytes_are_written_and_hashed_however_they_arrive(tmp_path_factory, data, cuts, name):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    path = tmp_path_factory.mktemp("chunks") / "x"
    with (
        ThreadPoolExecutor(3) as pool,
        path.open("wb", buffering=0) as file,
        ChunkWriter(pool, file.fileno(), name) as writer,
    ):
        for first, last in itertools.pairwise(edges):
            writer.add(memoryview(data)[first:last])
        found = writer.result()
    assert path.read_bytes() == data and writer.size == len(data)
    assert found == hash_bytes(data, name)


def test_a_failed_write_is_raised_and_no_thread_writes_on(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"")
    with ThreadPoolExecutor(3) as pool, path.open("rb") as closed_to_writing:
        writer = ChunkWriter(pool, closed_to_writing.fileno(), BLAKE3)
        with pytest.raises(OSError, match="Bad file descriptor"), writer:
            for _ in range(MAX_PENDING + 2):
                writer.add(memoryview(bytes(16)))
            writer.result()
        assert all(chunk.done() for chunk in writer.pending), "nobody writes on"


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    plain = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: plain(file, data[:2], at))
    with (
        ThreadPoolExecutor(2) as pool,
        (tmp_path / "x").open("wb", buffering=0) as file,
        ChunkWriter(pool, file.fileno(), BLAKE3) as writer,
    ):
        writer.add(memoryview(b"0123456789" * 10))
        writer.result()
    assert (tmp_path / "x").read_bytes() == b"0123456789" * 10
