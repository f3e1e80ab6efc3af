"""One hash of bytes, in memory or in a file."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepladder.checkpoint.digest as digest
from stepladder.checkpoint import hash_bytes, hash_file


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(digest, "STRETCH", 16)


@given(data=st.binary(max_size=300))
def test_a_file_has_the_hash_of_its_bytes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("digest") / "x"
    path.write_bytes(data)
    assert hash_bytes(data) == hash_file(path)


def test_the_hash_is_sha256_of_the_stretches_hashes():
    expected = hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
    assert hash_bytes(b"abc") == expected
