"""One hash of a file, however its bytes arrive."""

import hashlib
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepladder.checkpoint.digest as digest
from stepladder.checkpoint import hash_bytes, hash_file


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch):
    monkeypatch.setattr(digest, "STRETCH", 16)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_the_hash_does_not_depend_on_how_bytes_arrive(tmp_path_factory, data, cuts):
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    with ThreadPoolExecutor(2) as pool:
        running = digest.Digest(pool)
        for first, last in itertools.pairwise(edges):
            running.update(memoryview(data)[first:last])
        found = running.result()
    path = tmp_path_factory.mktemp("digest") / "x"
    path.write_bytes(data)
    assert found == hash_bytes(data) == hash_file(path)


def test_the_hash_is_sha256_of_the_stretches_hashes():
    expected = hashlib.sha256(hashlib.sha256(b"abc").digest()).hexdigest()
    assert hash_bytes(b"abc") == expected
