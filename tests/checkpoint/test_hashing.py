"""One hash of bytes, in memory or in a file, by either of two."""

import errno
import hashlib
import importlib.util
import mmap
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepladder.checkpoint.hashing as digest
from stepladder.checkpoint import hash_bytes
from stepladder.checkpoint.hashing import BLAKE3, SHA256
from tests.checkpoint.files import hash_file

HASHES = [BLAKE3, SHA256]
PAGE = mmap.ALLOCATIONGRANULARITY  # where a chunk may begin


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(digest, "CHUNK_BYTES", PAGE)


@given(
    count=st.integers(0, 4),
    more=st.integers(-2, 2),
    seed=st.binary(min_size=1, max_size=50),
    name=st.sampled_from(HASHES),
)
def test_a_file_has_the_hash_of_its_bytes(tmp_path_factory, count, more, seed, name):
    length = max(0, count * PAGE + more)
    data = (seed * (length // len(seed) + 1))[:length]
    path = tmp_path_factory.mktemp("digest") / "x"
    path.write_bytes(data)
    assert hash_bytes(data, name) == hash_file(path, name)


def test_the_hash_is_of_the_chunks_hashes():
    expected = hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
    assert hash_bytes(b"abc", SHA256) == expected
    whole = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"  # BLAKE3's own
    inner = digest.available_hashes()[BLAKE3](b"abc")
    assert inner.hexdigest() == whole
    assert (
        hash_bytes(b"abc", BLAKE3) == digest.available_hashes()[BLAKE3](inner.digest()).hexdigest()
    )


def test_without_its_package_the_fast_hash_is_not_there_and_the_other_is(monkeypatch):
    assert list(digest.available_hashes()) == HASHES and digest.default_hash() == BLAKE3
    monkeypatch.setitem(sys.modules, "blake3", None)  # how Python marks what cannot be imported
    spec = importlib.util.find_spec("stepladder.checkpoint.hashing")
    bare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bare)
    assert list(bare.available_hashes()) == [SHA256] and bare.default_hash() == SHA256


def test_a_chunk_that_is_gone_by_the_time_it_is_read_is_not_what_was_written(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a" * PAGE)
    assert digest.hash_chunk(path, hashlib.sha256, PAGE) == b""
    with path.open("rb") as file:
        assert digest.read_into_page_cache(file.fileno(), 0, PAGE)
        assert not digest.read_into_page_cache(file.fileno(), 0, PAGE + 1)


def test_what_cannot_be_read_is_an_error_before_it_is_looked_at(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)  # a folder gives no bytes
    try:
        with pytest.raises(OSError, match="directory"):
            digest.read_into_page_cache(handle, 0, 1)
    finally:
        os.close(handle)


def test_a_file_is_read_where_it_cannot_be_sent_to_nowhere(tmp_path, monkeypatch):
    def refuse(*_: int) -> int:
        raise OSError(errno.ENOTSOCK, "as on other systems")

    monkeypatch.setattr(os, "sendfile", refuse)
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 17)
    assert hash_file(path, BLAKE3) == hash_bytes(path.read_bytes(), BLAKE3)
