"""The exchange of a round: slices to the owners of its matrices, and results back.

[Note: rounds] A round's matrices are sent, computed and sent back together, those of one shape as
one stack. While a round is computed the next one's slices arrive and the last one's results leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.checkpoint import TensorSlice

from .matrix_shards import MatrixShard
from .shared_work import Message, Share, results_from_owners, slices_to_owners

Wait = Callable[[], None]
View = Callable[[TensorSlice], Tensor]


@dataclass(frozen=True, slots=True)
class Mail:
    """What this rank sends, gets, and keeps, of one direction of a round."""

    sent: tuple[Message, ...]
    got: tuple[Message, ...]
    kept: tuple[Message, ...]
    travels: bool  # whether any rank sends: then all take part

    @classmethod
    def of(cls, messages: Iterable[Message], rank: int) -> Mail:
        """In an order in which sender and receiver agree."""
        every = list(messages)
        return cls(
            tuple(sorted((m for m in every if m.sender == rank != m.receiver), key=to_receiver)),
            tuple(sorted((m for m in every if m.receiver == rank != m.sender), key=from_sender)),
            tuple(m for m in every if m.sender == rank == m.receiver),
            any(m.sender != m.receiver for m in every),
        )


def to_receiver(message: Message) -> tuple[int, int]:
    return message.receiver, message.matrix


def from_sender(message: Message) -> tuple[int, int]:
    return message.sender, message.matrix


@dataclass(frozen=True, slots=True)
class Round:
    """What this rank does in one round."""

    matrices: tuple[int, ...]  # all of the round
    owned: tuple[int, ...]  # those that it computes
    slices: Mail
    results: Mail


def rounds_of(held: Sequence[MatrixShard], share: Share, rank: int) -> list[Round]:
    found = []
    for number in range(share.num_rounds):
        inside = share.in_round(number)
        mails = [
            Mail.of((m for i in inside for m in make(i, held[i].matrix, share.owners[i])), rank)
            for make in (slices_to_owners, results_from_owners)
        ]
        owned = tuple(i for i in inside if rank in share.owners[i])
        found.append(Round(tuple(inside), owned, *mails))
    return found


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one shape, one behind the other."""

    members: Sequence[int]
    counts: Sequence[int]  # matrices of each member
    numbers: Tensor

    def parts(self, numbers: Tensor) -> dict[int, Tensor]:
        """Each member's part of a tensor of this shape."""
        return dict(zip(self.members, numbers.split(list(self.counts))))


@dataclass(frozen=True, slots=True)
class Exchange:
    """Buffers and collectives among the ranks of a stage."""

    held: Sequence[MatrixShard]
    dtype: torch.dtype  # what is computed and sent
    device: torch.device
    group: dist.ProcessGroup | None  # None: one rank

    def stacks(self, owned: Sequence[int]) -> list[Stack]:
        """Room for whole matrices, those of one shape behind each other."""
        by_shape: dict[tuple[int, int], list[int]] = {}
        for index in owned:
            shape = self.held[index].matrix.shape
            by_shape.setdefault((shape.rows, shape.columns), []).append(index)
        found = []
        for (rows, columns), members in by_shape.items():
            counts = [self.held[index].matrix.shape.count for index in members]
            room = (sum(counts), rows, columns)
            found.append(
                Stack(members, counts, torch.empty(room, dtype=self.dtype, device=self.device))
            )
        return found

    def send(self, mail: Mail, view: Callable[[Message], View]) -> tuple[Tensor, Wait]:
        """Send the slices that `view` shows; what comes, once it is waited for."""
        if self.group is None or not mail.travels:
            return torch.empty(0), nothing
        outgoing, counts = self.buffer(mail.sent, lambda message: message.receiver)
        for message, room in zip(mail.sent, split(outgoing, mail.sent)):
            for piece, part in parts_of(message, room):
                part.copy_(view(message)(piece))
        incoming, sizes = self.buffer(mail.got, lambda message: message.sender)
        item = outgoing.element_size()
        # As bytes: gloo does not send every type.
        work = dist.all_to_all_single(
            incoming.view(torch.uint8), outgoing.view(torch.uint8),
            [item * size for size in sizes], [item * count for count in counts],
            group=self.group, async_op=True,
        )  # fmt: skip

        def wait(outgoing: Tensor = outgoing) -> None:  # which must live until then
            work.wait()

        return incoming, wait

    def buffer(
        self, messages: Sequence[Message], partner: Callable[[Message], int]
    ) -> tuple[Tensor, list[int]]:
        assert self.group is not None
        counts = [0] * self.group.size()
        for message in messages:
            counts[partner(message)] += message.elements
        return torch.empty(sum(counts), dtype=self.dtype, device=self.device), counts


def nothing() -> None:
    """Wait for nothing."""


def split(buffer: Tensor, messages: Sequence[Message]) -> tuple[Tensor, ...]:
    return buffer.split([message.elements for message in messages]) if messages else ()


def parts_of(message: Message, buffer: Tensor) -> Iterator[tuple[TensorSlice, Tensor]]:
    """Its slices, which lie behind each other."""
    counts = [piece.count for piece in message.slices]
    for piece, part in zip(message.slices, buffer.split(counts)):
        yield piece, part.view(piece.size)
