"""Ranks that were given different things say so, all of them, before the first collective."""

import os
import signal
import time

import pytest
import torch.distributed as dist

from stepladder.errors import LostRank, WorldError
from stepladder.plan import Layout
from stepladder.world import Place, join_world
from stepladder.world.ranks import agreement
from stepladder.world.ranks.agreement import (
    StopVote,
    compare_ranks,
    differences,
    digest,
    fingerprints,
)
from tests.ranks import run

SAME = {"torch version": "2.13", "plan": "fp32 ddp", "script": "#aa"}


def test_ranks_with_the_same_facts_differ_in_nothing():
    assert differences([SAME, SAME, SAME]) == ""


def test_a_difference_names_the_ranks_the_fact_and_short_values():
    others = {**SAME, "torch version": "2.11"}
    found = differences([SAME, others, SAME, {**others, "script": "#bb"}])
    assert found == (
        "not the same on all ranks: ranks 1, 3 in torch version ('2.11' against '2.13'); "
        "rank 3 in script, compared with rank 0"
    )


def test_a_long_or_empty_fact_is_named_and_not_shown():
    long, empty = {**SAME, "plan": "x" * 99}, {**SAME, "plan": ""}
    for other in (long, empty):
        assert "rank 1 in plan, compared" in differences([SAME, other])


def test_what_runs_here_is_known_and_changes_with_the_code(tmp_path, monkeypatch):
    before = fingerprints()
    assert set(before) == {"torch version", "stepladder's code", "script"}
    (tmp_path / "a.py").write_text("x = 1")
    monkeypatch.setattr(agreement, "PACKAGE", tmp_path)
    changed = fingerprints()
    assert changed["stepladder's code"] != before["stepladder's code"]
    (tmp_path / "a.py").write_text("x = 2")
    assert fingerprints()["stepladder's code"] != changed["stepladder's code"]


def test_a_digest_does_not_confuse_where_files_end():
    assert digest(b"ab", b"c") != digest(b"a", b"bc")


def joined(plans: list[str]) -> str:
    try:
        join_world(Layout(replicate=2), "cpu", plan=plans[int(os.environ["RANK"])])
    except WorldError as different:
        return str(different)
    return "joined"


def test_ranks_with_different_plans_all_say_which():
    said = run(joined, 2, ["fp32 ddp", "bf16 ddp"], init=False)
    assert (
        said
        == [
            "world: not the same on all ranks: rank 1 in plan ('bf16 ddp' against 'fp32 ddp'), "
            "compared with rank 0. Start every rank with the same files, versions and options."
        ]
        * 2
    )
    assert run(joined, 2, ["fp32 ddp"] * 2, init=False) == ["joined"] * 2


def joined_with_other_code() -> str:
    if os.environ["RANK"] == "1":
        agreement.PACKAGE = agreement.PACKAGE / "world"
    try:
        join_world(Layout(replicate=2), "cpu")
    except WorldError as different:
        return str(different)
    finally:
        if os.environ["RANK"] == "1":
            agreement.PACKAGE = agreement.PACKAGE.parent
    return "joined"


def test_ranks_with_different_code_all_say_so():
    for said in run(joined_with_other_code, 2, init=False):
        assert "rank 1 in stepladder's code, compared with rank 0" in said


def compared_twice() -> str:
    store, place = dist.distributed_c10d._get_default_store(), Place.from_environment()
    compare_ranks(store, place, {"a": "1"}, 60)
    try:
        compare_ranks(store, place, {"a": str(place.rank)}, 60)
    except WorldError as different:
        return str(different)
    return "same"


def test_a_second_comparison_does_not_read_the_first_ones_answer():
    for said in run(compared_twice, 2):
        assert "rank 1 in a ('1' against '0')" in said


def test_a_rank_that_says_nothing_is_named():
    with pytest.raises(LostRank) as lost:
        compare_ranks(dist.HashStore(), Place(0, 2, launched=True), {}, 0.2)
    assert str(lost.value).startswith("rank 1: did not say within 0.2 s what it was started with.")
    with pytest.raises(LostRank, match="rank 0: did not say within"):
        compare_ranks(dist.HashStore(), Place(1, 2, launched=True), {}, 0.2)


def vote(asker: int, step: int) -> list[str | None]:
    rank = int(os.environ["RANK"])
    ballot = StopVote(2, 60)
    heard = []
    for now in range(5):
        time.sleep(0.02 * (rank + 1))
        heard.append(ballot.vote("SIGTERM" if rank == asker and now >= step else None))
    return [*heard, ballot.result()]


def test_a_signal_that_one_rank_saw_stops_all_after_the_same_step():
    none = [None] * 3
    assert run(vote, 2, 1, 2) == [[*none, "SIGTERM", "SIGTERM", "SIGTERM"]] * 2
    assert run(vote, 2, 0, 4) == [[*none, None, None, "SIGTERM"]] * 2
    assert run(vote, 2, 0, 9) == [[*none, None, None, None]] * 2


def test_a_world_of_one_needs_no_vote():
    ballot = StopVote(1, 10)
    assert ballot.vote(None) is None
    assert ballot.vote(signal.SIGINT.name) == "SIGINT"
    assert ballot.result() is None
