"""Two hosts in network namespaces: one is lost, and taken back in."""

import pytest

from stepladder.errors import WorldError
from stepladder.measure import SlowLink

from .hosts import TOLERANCE, disturb

pytestmark = pytest.mark.soak


@pytest.mark.timeout(1800)  # a minute alone, several on a crowded machine
def test_a_lost_host_is_left_behind_and_taken_back_in_and_losses_stay_the_same(tmp_path):
    try:
        with SlowLink(None):
            pass
    except WorldError as refused:
        pytest.skip(str(refused))
    # The long form goes on from checkpoints; here the host is lost before there is one.
    found = disturb(tmp_path, cut=False, save_every=0)
    assert [event["ranks"] for event in found["events"]] == [2, 1, 2]
    _, lost, back = (event["step"] for event in found["events"])  # one may have begun alone
    assert lost == 0 < back
    assert found["largest difference"] < TOLERANCE
