"""Collectives counted: against the ring's formula, and against what the kernel says was sent."""

import torch
import torch.distributed as dist

from stepladder.measure import Traffic, sent_since, wire_bytes
from tests.ranks import run


def talk():
    tensor, whole = torch.zeros(4), torch.zeros(8)
    with Traffic() as traffic:
        dist.all_reduce(tensor)
        dist.all_gather(list(whole.chunk(2)), tensor)
        dist.reduce_scatter(tensor, list(whole.chunk(2)))
    return dict(traffic.calls), dict(traffic.bytes), traffic.sent_bytes


def test_traffic_counts_what_a_ring_would_send():
    calls, sizes, sent = run(talk, 2)[0]
    assert calls == {"all_reduce": 1, "all_gather": 1, "reduce_scatter": 1}
    assert sizes == {"all_reduce": 16, "all_gather": 32, "reduce_scatter": 32}
    assert sent == 2 * 16 / 2 + 32 / 2 + 32 / 2


def pass_on():
    """The first rank sends to the second, then both add up: counted here and by the kernel."""
    message = torch.zeros(2**18)
    dist.all_reduce(torch.zeros(1))
    before = wire_bytes()
    with Traffic() as traffic:
        if dist.get_rank() == 0:
            dist.send(message, 1)
        else:
            dist.recv(message, 0)
    dist.all_reduce(torch.zeros(1))  # after it the message has left
    sent = sent_since(before)
    dist.all_reduce(torch.zeros(1))  # so that both ends stay open meanwhile
    return traffic.sent_bytes, sent


def test_a_message_to_one_rank_is_sent_whole_by_its_sender():
    (first, wire), (second, other) = run(pass_on, 2)
    assert (first, second) == (2**20, 0)
    if wire is not None:
        assert first <= wire <= 1.01 * first and other < 0.01 * first
