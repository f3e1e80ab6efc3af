"""The lines that `tests.mutations` breaks are there to be broken."""

import pytest

from tests.mutations.__main__ import MUTATIONS, ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.part)
def test_a_mutation_can_be_planted(mutation):
    text = (ROOT / "src" / "stepladder" / mutation.file).read_text()
    assert text.count(mutation.right) == 1 and mutation.wrong != mutation.right
