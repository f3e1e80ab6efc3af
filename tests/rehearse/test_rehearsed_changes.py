"""Where memory ends under a planted limit, and what changes free there."""

import pytest

from stepladder.plan import Plan
from stepladder.rehearse import rehearse
from stepladder.rehearse.named_subject import RehearsalSubject
from stepladder.rehearse.rehearsed_changes import rehearse_changes
from tests.rehearse.subjects import make

WORDS = ("fp32 offload=parameters", "fp32 micro=2", "fp32 recompute=blocks", "fp32 micro=8")


@pytest.fixture(scope="module")
def base():
    module, batch, loss = make("decoder")
    return rehearse(module, "fp32 micro=8", sample=batch, loss=loss, device="cpu")


def test_changes_free_what_their_own_rehearsal_says(base):
    subject = RehearsalSubject(*make("decoder"))
    limit = base.reserved_bytes - 1
    changes = [(words, Plan.parse(f"{words} batch=8")) for words in WORDS]
    found = rehearse_changes(subject, base, changes, limit_bytes=limit)
    assert [one.words for one in found] == ["fp32 micro=2", "fp32 recompute=blocks"]
    for one in found:
        assert one.freed_bytes == base.allocated_bytes - one.rehearsal.allocated_bytes > 0
        assert one.fits and one.to_dict()["freed_bytes"] == one.freed_bytes


def test_the_end_is_a_moment_a_module_and_an_owner(base):
    said = base.where_it_ends(base.reserved_bytes // 2)
    assert f"It ends in {base.phase}, at " in said and "can be used" in said
    assert "Largest owner: activations" in said and "made " in said
