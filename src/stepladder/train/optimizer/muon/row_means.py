"""The means of a matrix's rows, which NorMuon keeps: a number for each row, whole on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stepladder.checkpoint import whole_slice

from .exchange import Exchange, Mail, View, parts_of, split
from .matrix_shards import MatrixShard
from .shared_work import Message, Share, nearest


def row_shape(one: MatrixShard) -> tuple[int, ...]:
    """Of one number for each row of a parameter's matrices."""
    whole = one.whole
    rows = len(whole) - 1 if one.matrix.shape.count > 1 or len(whole) == 2 else 1
    return (*whole[:rows], *(1 for _ in whole[rows:]))


def row_messages(held: Sequence[MatrixShard], share: Share) -> Iterator[Message]:
    """The means of a matrix's rows, from an owner to each rank of the stage that is none."""
    for index, (one, owners) in enumerate(zip(held, share.owners)):
        rows = whole_slice(row_shape(one))
        for rank, _ in enumerate(one.matrix.holdings):
            if rank not in owners:
                yield Message(index, nearest(owners, rank, one.matrix.copies), rank, (rows,))


def share_row_means(exchange: Exchange, mail: Mail, kept: Callable[[int], Tensor]) -> None:
    """Have every rank of the stage know the means that owners made."""

    def view(message: Message) -> View:
        return lambda piece: piece.view(kept(message.matrix))

    came, wait = replace(exchange, dtype=torch.float32).send(mail, view)
    wait()
    for message, room in zip(mail.got, split(came, mail.got)):
        for piece, part in parts_of(message, room):
            view(message)(piece).copy_(part)
