"""Communications stand in the order in which they had to happen."""

from stepladder.cli.learning.message_order import MESSAGE, Communication, communications


def send(peer, size=8):
    return {"kind": "send", "peer": peer, "bytes": size, "ways": 3}


def recv(peer, size=8):
    return {"kind": "recv", "peer": peer, "bytes": size, "ways": 3}


def reduce(ways=2, size=4):
    return {"kind": "all_reduce", "ways": ways, "bytes": size}


def placed(act):
    return [(one.place, one.kind, one.ranks) for one in communications(act)]


def test_what_all_ranks_send_at_once_stands_together():
    act = {rank: [send((rank + 1) % 3), recv((rank - 1) % 3)] * 2 for rank in range(3)}
    assert [place for place, _, _ in placed(act)] == [1, 1, 1, 2, 2, 2]


def test_a_message_comes_after_what_its_sender_was_told():
    act = {0: [send(1)], 1: [recv(0), send(2)], 2: [recv(1)]}
    assert placed(act) == [(1, MESSAGE, (0, 1)), (2, MESSAGE, (1, 2))]


def test_a_receive_that_is_announced_early_holds_nobody_up():
    act = {0: [recv(1), send(1)], 1: [recv(0), send(0)]}
    assert sorted(placed(act)) == [(1, MESSAGE, (0, 1)), (2, MESSAGE, (1, 0))]


def test_a_collective_comes_when_all_members_have_come():
    act = {0: [{"held": 1}, send(1), reduce()], 1: [recv(0), reduce(size=16)]}
    assert communications(act) == [
        Communication(1, MESSAGE, (0, 1), 8),
        Communication(2, "all_reduce", (0, 1), 16),
    ]


def test_what_was_begun_with_a_lost_rank_is_left_out():
    assert placed({0: [reduce(), reduce()], 1: [reduce()]}) == [(1, "all_reduce", (0, 1))]
