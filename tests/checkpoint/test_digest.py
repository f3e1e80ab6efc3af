"""One hash of bytes, in memory or in a file."""

import errno
import hashlib
import mmap
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepladder.checkpoint.digest as digest
from stepladder.checkpoint import hash_bytes, hash_file

PAGE = mmap.ALLOCATIONGRANULARITY  # where a stretch may begin


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(digest, "STRETCH", PAGE)


@given(count=st.integers(0, 4), more=st.integers(-2, 2), seed=st.binary(min_size=1, max_size=50))
def test_a_file_has_the_hash_of_its_bytes(tmp_path_factory, count, more, seed):
    length = max(0, count * PAGE + more)
    data = (seed * (length // len(seed) + 1))[:length]
    path = tmp_path_factory.mktemp("digest") / "x"
    path.write_bytes(data)
    assert hash_bytes(data) == hash_file(path)


def test_the_hash_is_sha256_of_the_stretches_hashes():
    expected = hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
    assert hash_bytes(b"abc") == expected


def test_a_stretch_that_is_gone_by_the_time_it_is_read_is_not_what_was_written(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a" * PAGE)
    assert digest.hash_stretch(path, PAGE) == b""
    with path.open("rb") as file:
        assert digest.bring(file.fileno(), 0, PAGE)
        assert not digest.bring(file.fileno(), 0, PAGE + 1)


def test_what_cannot_be_read_is_an_error_before_it_is_looked_at(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)  # a folder gives no bytes
    try:
        with pytest.raises(OSError, match="directory"):
            digest.bring(handle, 0, 1)
    finally:
        os.close(handle)


def test_a_file_is_read_where_it_cannot_be_sent_to_nowhere(tmp_path, monkeypatch):
    def refuse(*_: int) -> int:
        raise OSError(errno.ENOTSOCK, "as on other systems")

    monkeypatch.setattr(os, "sendfile", refuse)
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 17)
    assert hash_file(path) == hash_bytes(path.read_bytes())
