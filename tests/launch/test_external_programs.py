"""Programs of other people: one that does not answer is given up, with its name."""

import pytest

from stepladder.errors import WorldError
from stepladder.launch import external_programs
from stepladder.launch.external_programs import ask


def test_a_program_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(external_programs, "LIMIT_SECONDS", 0.2)
    with pytest.raises(WorldError) as caught:
        ask(["/bin/sleep", "60"])
    assert str(caught.value) == "sleep: did not answer within 0.2 s. See that its server runs."
