import pytest

from stepladder.seam import lookup


@pytest.fixture
def without(monkeypatch):
    """Take names from the lookup, as a torch without them would."""

    def take(*paths: str) -> None:
        reach = lookup.reach
        monkeypatch.setattr(lookup, "FOUND", {})

        def reached(path: str) -> object:
            if path in paths:
                raise AttributeError(path)
            return reach(path)

        monkeypatch.setattr(lookup, "reach", reached)

    return take
