"""The run that every place starts, and the local one that all are held against.

Clusters take minutes to try: these tests run where they are asked for, by `make services`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.forked_processes import new_interpreters

from .same import Place

ASKED = os.environ.get("SERVICES") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not ASKED and "tests/services" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="make services asks for it (SERVICES=1)"))


@pytest.fixture(scope="session", autouse=True)
def processes_as_users_start_them() -> Iterator[None]:
    with new_interpreters():
        yield


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Iterator[Place]:
    # What people call their folders: every place must hand the name on as it is.
    place = Place(tmp_path_factory.mktemp("services") / "it's 100% mine")
    yield place
    place.end()
