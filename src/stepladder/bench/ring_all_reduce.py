"""A ring all-reduce on sends and receives alone, with every byte it sends counted.

D bytes are cut into N chunks. For N-1 steps each rank sends one chunk to the next rank, which adds
it to its own: then every rank holds one finished chunk (reduce-scatter). For N-1 more steps the
finished chunks go round and replace what they meet (all-gather). At step s rank r sends chunk
(r - s) mod N, in both halves.

Of its N chunks a rank sends all but one in each half, so 2(N-1)/N·D bytes, whatever the number of
ranks just under 2D; and no link carries more than any other. Where N does not divide the elements
the first chunks are one longer, and rank r sends exactly 2D - |chunk r+1| - |chunk r+2| bytes; the
mean over ranks is still 2(N-1)/N·D. Each chunk is added up along one way and then copied, so all
ranks end with the same bits.

It is here to be read, drawn and held against the backend's, which it does not replace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist

from stepladder.launch import Ranks
from stepladder.measure import sent_since, wire_bytes
from stepladder.plan import Layout
from stepladder.world import join_world

from .collectives import Call, check_messages, median_call


@dataclass(frozen=True, slots=True)
class Hop:
    """One message of the ring."""

    step: int
    source: int
    target: int
    chunk: int
    adds: bool  # to what the target holds, rather than replacing it


@cache
def ring_hops(ranks: int) -> tuple[Hop, ...]:
    """Every message, step by step."""
    return tuple(
        Hop(step, rank, (rank + 1) % ranks, (rank - step) % ranks, adds=step < ranks - 1)
        for step in range(2 * (ranks - 1))
        for rank in range(ranks)
    )


def ring_states(ranks: int) -> list[list[list[int]]]:
    """How many ranks are added up in each rank's each chunk: at the start and after each step."""
    held = [[1] * ranks for _ in range(ranks)]
    states = [held]
    for step in range(2 * (ranks - 1)):
        after = [list(chunks) for chunks in held]
        for hop in ring_hops(ranks)[step * ranks : (step + 1) * ranks]:
            met = held[hop.target][hop.chunk] if hop.adds else 0
            after[hop.target][hop.chunk] = held[hop.source][hop.chunk] + met
        states.append(held := after)
    return states


def chunk_lengths(elements: int, ranks: int) -> list[int]:
    """As even as can be, the longer ones first: what `tensor_split` does."""
    short, longer = divmod(elements, ranks)
    return [short + (index < longer) for index in range(ranks)]


def ring_bytes(elements: int, element_bytes: int, ranks: int, rank: int) -> int:
    """What the rank sends, by formula."""
    lengths = chunk_lengths(elements, ranks)
    kept = lengths[(rank + 1) % ranks] + lengths[(rank + 2) % ranks]
    return (2 * elements - kept) * element_bytes


@torch.no_grad()
def ring_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> int:
    """Add up the tensor over the group, in place; returns the bytes this rank sent."""
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    rank, ranks = members.index(dist.get_rank()), len(members)
    flat = tensor.contiguous().view(-1)
    chunks = flat.tensor_split(ranks)
    arrived = torch.empty_like(chunks[0])  # no chunk is longer than the first
    hops = ring_hops(ranks)
    sent = 0
    for leaving, coming in zip(hops[rank::ranks], hops[(rank - 1) % ranks :: ranks]):
        target = chunks[coming.chunk]
        inbox = arrived[: len(target)] if coming.adds else target
        sent += exchange(chunks[leaving.chunk], members[leaving.target],
                         inbox, members[coming.source], group)  # fmt: skip
        if coming.adds:
            target += inbox
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))
    return sent


def exchange(
    outgoing: torch.Tensor,
    target: int,
    inbox: torch.Tensor,
    source: int,
    group: dist.ProcessGroup | None,
) -> int:
    """Send to one rank while receiving from another; bytes sent. Empty chunks stay at home."""
    messages = []
    if len(outgoing):
        messages.append(dist.P2POp(dist.isend, outgoing, target, group))
    if len(inbox):
        messages.append(dist.P2POp(dist.irecv, inbox, source, group))
    for request in dist.batch_isend_irecv(messages) if messages else ():
        request.wait()
    return outgoing.nbytes


@dataclass(frozen=True, slots=True)
class RingShare:
    """What one rank saw of one size."""

    ring_seconds: float
    backend_seconds: float
    sent_bytes: int
    formula_bytes: int
    wire_bytes: float | None  # of one ring, by the kernel
    backend_wire_bytes: float | None
    difference: float  # from the backend's sum, relative to its largest entry
    digest: str  # of the ring's result, bit by bit


@dataclass(frozen=True, slots=True)
class RingRow:
    """One size: the ring beside the backend's all-reduce; bytes are of the rank that sent most."""

    bytes: int
    ranks: int
    ring_ms: float
    backend_ms: float
    sent_bytes: int  # counted as they were handed over
    formula_bytes: int
    wire_bytes: float | None
    backend_wire_bytes: float | None
    difference: float
    exact: bool  # every rank sent what the formula says
    same: bool  # every rank ended with the same bits


def measure_ring(
    pool: Ranks, sizes: Iterable[int], *, device: str = "auto", steps: int = 10
) -> Iterable[RingRow]:
    """One row a size in bytes, of fp32, as each is done."""
    for size in sizes:
        elements = max(size // 4, 1)
        shares = pool.call(ring_share, pool.ranks, elements, device, steps)
        yield row_of(elements * 4, shares)


def row_of(size: int, shares: list[RingShare]) -> RingRow:
    most = max(shares, key=lambda share: share.sent_bytes)
    return RingRow(
        bytes=size,
        ranks=len(shares),
        ring_ms=max(share.ring_seconds for share in shares) * 1e3,
        backend_ms=max(share.backend_seconds for share in shares) * 1e3,
        sent_bytes=most.sent_bytes,
        formula_bytes=most.formula_bytes,
        wire_bytes=most.wire_bytes,
        backend_wire_bytes=most.backend_wire_bytes,
        difference=max(share.difference for share in shares),
        exact=all(share.sent_bytes == share.formula_bytes for share in shares),
        same=len({share.digest for share in shares}) == 1,
    )


def ring_share(ranks: int, elements: int, device: str, steps: int) -> RingShare:
    """On one rank: both all-reduces of the same numbers, then both timed."""
    world = join_world(Layout(replicate=ranks), device)
    check_messages(world.device)
    rank = world.place.rank
    draw = torch.Generator().manual_seed(rank)
    ours = torch.randn(elements, generator=draw).to(world.device)
    theirs = ours.clone()
    sent = ring_all_reduce(ours)
    dist.all_reduce(theirs)
    largest = theirs.abs().max().item()
    difference = (ours - theirs).abs().max().item() / largest
    digest = hashlib.blake2b(ours.cpu().numpy().tobytes()).hexdigest()
    ours.zero_()  # repeated sums of zero stay finite
    theirs.zero_()
    ring_seconds, ring_wire = watched(lambda: ring_all_reduce(ours), world.device, steps)
    seconds, wire = watched(lambda: dist.all_reduce(theirs), world.device, steps)
    formula = ring_bytes(elements, ours.element_size(), ranks, rank)
    world.close()
    return RingShare(
        ring_seconds,
        seconds,
        sent,
        formula,
        ring_wire,
        wire,
        difference,
        digest,
    )


def watched(call: Call, device: torch.device, steps: int) -> tuple[float, float | None]:
    """Median seconds of a call, and the bytes the kernel sent for one."""
    before = wire_bytes()
    call()
    dist.barrier()  # all has arrived, so all has been sent; its own bytes are few
    sent = sent_since(before)
    return median_call(call, device, steps), sent
