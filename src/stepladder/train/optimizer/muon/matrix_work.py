"""A step's work on matrices, round by round: slices out, products, results back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from stepladder.checkpoint import TensorSlice

from .exchange import Exchange, Mail, Round, Stack, View, Wait, parts_of, split
from .newton_schulz import orthogonalise
from .shared_work import Message

Pieces = Iterator[tuple[TensorSlice, Tensor]]


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A round between its slices and its results."""

    round: Round
    stacks: Sequence[Stack]
    came: Tensor
    wait: Wait


@dataclass(frozen=True, slots=True)
class MatrixWork:
    """How the ranks of a stage compute their matrices."""

    exchange: Exchange
    rounds: Sequence[Round]
    rows: Mail  # of all rounds' matrices, where means of rows are kept
    around: Callable[[], AbstractContextManager[None]]  # the mode of float32 products, threads
    orthogonalise: Callable[[Tensor, int], Tensor] = orthogonalise
    one_by_one: bool = False  # the same products whatever else a rank owns
    because: str = ""  # why these ranks compute these matrices

    def start(self, one: Round, directions: Mapping[int, Tensor]) -> UnderWay:
        """Send this rank's parts of a round's matrices to their owners."""

        def view(message: Message) -> View:
            places, part = self.exchange.held[message.matrix].places, directions[message.matrix]
            return lambda piece: places[piece].view(part)

        stacks = self.exchange.stacks(one.owned)
        came, wait = self.exchange.send(one.slices, view)
        wholes = self.wholes(stacks)
        for message in one.slices.kept:
            for piece in message.slices:
                piece.view(wholes[message.matrix]).copy_(view(message)(piece))
        return UnderWay(one, stacks, came, wait)

    def compute(self, now: UnderWay, steps: int) -> dict[int, Tensor]:
        """The matrices that this rank owns, orthogonalised, in stacks of their own."""
        now.wait()
        wholes, got = self.wholes(now.stacks), now.round.slices.got
        for message, room in zip(got, split(now.came, got)):
            for piece, part in parts_of(message, room):
                piece.view(wholes[message.matrix]).copy_(part)
        results: dict[int, Tensor] = {}
        for stack in now.stacks:
            size = 1 if self.one_by_one else len(stack.numbers)
            done = [self.orthogonalise(each, steps) for each in stack.numbers.split(size)]
            results |= stack.parts(torch.cat(done) if len(done) > 1 else done[0])
        return results

    def send_back(
        self, one: Round, results: Mapping[int, Tensor], apply: Callable[[int, Pieces], None]
    ) -> Wait:
        """Send results to whoever holds the matrices; what applies those that come.

        Args:
            apply: called with each matrix and its pieces, those that this rank owns at once.
        """

        def view(message: Message) -> View:
            whole = results[message.matrix].reshape(self.exchange.held[message.matrix].whole)
            return lambda piece: piece.view(whole)

        came, wait = self.exchange.send(one.results, view)
        for message in one.results.kept:
            look = view(message)
            apply(message.matrix, ((piece, look(piece)) for piece in message.slices))

        def finish() -> None:
            wait()
            for message, room in zip(one.results.got, split(came, one.results.got)):
                apply(message.matrix, parts_of(message, room))

        return finish

    def wholes(self, stacks: Sequence[Stack]) -> dict[int, Tensor]:
        """Each matrix of these stacks, in its parameter's shape."""
        return {
            index: part.view(self.exchange.held[index].whole)
            for stack in stacks
            for index, part in stack.parts(stack.numbers).items()
        }
