"""Notes between ranks."""

import pytest

from stepladder.errors import LostRank
from stepladder.world.ranks.rank_notes import RankNotes


def test_a_note_that_never_comes_is_a_lost_rank_and_no_users_mistake():
    board = RankNotes()
    board.post("folder", "runs/first")
    assert board.read("folder", 0.05) == "runs/first"
    with pytest.raises(LostRank, match="no word of token within 0.05 s"):
        board.read("token", 0.05)
