"""A folder for a user's files: what was imported from it is forgotten after a test."""

import sys

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, empty."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
