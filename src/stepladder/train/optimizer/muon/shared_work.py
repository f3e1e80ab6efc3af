"""Who orthogonalises which matrix, in which round, and who sends which slices to whom.

An update needs a whole matrix, and ranks hold slices or copies of it. A rank that computes one is
its owner. Every rank works out the same table, so nothing but numbers travels in a step.

    one        one owner among all ranks of the stage: least work, and every copy waits for results
    each copy  one owner in each set of ranks that hold one copy together: nothing crosses sets
    everyone   every rank: slices travel once, and no result does
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepladder.checkpoint import TensorSlice
from stepladder.model.anatomy.hidden_matrices import MatrixShape
from stepladder.plan.shared_constants import MUON_ROUND_BYTES
from stepladder.planner.time.orthogonalise_time import OrthogonaliseRates, newton_schulz_flops

Slices = tuple[TensorSlice, ...]
Sharing = Literal["one", "each copy", "everyone"]
SHARINGS: tuple[Sharing, ...] = ("each copy", "one", "everyone")  # of equals the first is taken
WORDS = {"one": "one rank of all", "each copy": "one rank of each copy", "everyone": "every rank"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter that is orthogonalised, and what each rank of the stage holds of it."""

    name: str
    shape: MatrixShape
    holdings: tuple[Slices, ...]  # by rank
    copies: tuple[int, ...]  # by rank: the number of the copy of which it holds a part

    @property
    def elements(self) -> int:
        return self.shape.rows * self.shape.columns * self.shape.count

    def flops(self, steps: int) -> float:
        flops = newton_schulz_flops(self.shape.rows, self.shape.columns, steps)
        return flops * self.shape.count


@dataclass(frozen=True, slots=True)
class Message:
    """Slices of a matrix on their way from one rank to another, or to itself."""

    matrix: int
    sender: int
    receiver: int
    slices: Slices

    @property
    def elements(self) -> int:
        return sum(piece.count for piece in self.slices)


@dataclass(frozen=True, slots=True)
class Share:
    """Who owns which matrix, and in which round it is computed."""

    sharing: Sharing
    owners: tuple[tuple[int, ...], ...]  # by matrix
    rounds: tuple[int, ...]  # by matrix
    because: str = ""  # what the forecast says of this sharing and the others

    def in_round(self, number: int) -> list[int]:
        return [index for index, each in enumerate(self.rounds) if each == number]

    @property
    def num_rounds(self) -> int:
        return max(self.rounds, default=-1) + 1


def share_work(
    matrices: Sequence[Matrix], ranks: int, steps: int, item: int, rates: OrthogonaliseRates
) -> Share:
    """The sharing that is forecast to be fastest.

    Args:
        item: bytes of an element that is sent.
    """
    shares = [make_share(sharing, matrices, ranks, steps, item) for sharing in SHARINGS]
    costs = [seconds(share, matrices, ranks, steps, item, rates) for share in shares]
    best = min(range(len(shares)), key=costs.__getitem__)
    others = ", ".join(
        f"{WORDS[share.sharing]} {1e3 * cost:.2g}"
        for share, cost in zip(shares, costs)
        if share is not shares[best]
    )
    said = f"{1e3 * costs[best]:.2g} ms a step by forecast (by {others})"
    because = f"muon: a matrix is computed by {WORDS[shares[best].sharing]}, {said}"
    return replace(shares[best], because=because if ranks > 1 else "")


def make_share(
    sharing: Sharing, matrices: Sequence[Matrix], ranks: int, steps: int, item: int
) -> Share:
    """Owners with about as much work each: the costliest matrix first, to who has least to do."""
    work, waiting = [0.0] * ranks, [0] * ranks
    owners: list[tuple[int, ...]] = [()] * len(matrices)
    rounds = [0] * len(matrices)
    costs = [matrix.flops(steps) for matrix in matrices]
    for index in sorted(range(len(matrices)), key=lambda index: -costs[index]):
        matrix = matrices[index]
        chosen = choose_owners(sharing, matrix, work)
        owners[index] = chosen
        rounds[index] = max(waiting[rank] * item // MUON_ROUND_BYTES for rank in chosen)
        for rank in chosen:
            work[rank] += costs[index]
            waiting[rank] += matrix.elements
    return Share(sharing, tuple(owners), tuple(rounds))


def choose_owners(sharing: Sharing, matrix: Matrix, work: Sequence[float]) -> tuple[int, ...]:
    every = range(len(work))
    if sharing == "everyone":
        return tuple(every)
    if sharing == "one":
        return (min(every, key=work.__getitem__),)
    sets: dict[int, list[int]] = {}
    for rank in every:
        sets.setdefault(matrix.copies[rank], []).append(rank)
    return tuple(sorted(min(members, key=work.__getitem__) for members in sets.values()))


def slices_to_owners(index: int, matrix: Matrix, owners: Iterable[int]) -> Iterator[Message]:
    """Each owner gets every slice once, from the nearest rank that holds it, in its copy if any."""
    holders: dict[Slices, list[int]] = {}
    for rank, slices in enumerate(matrix.holdings):
        if slices:
            holders.setdefault(slices, []).append(rank)
    for owner in owners:
        for slices, ranks in holders.items():
            yield Message(index, nearest(ranks, owner, matrix.copies), owner, slices)


def results_from_owners(index: int, matrix: Matrix, owners: Sequence[int]) -> Iterator[Message]:
    """Each rank gets what it holds, from the nearest owner."""
    for rank, slices in enumerate(matrix.holdings):
        if slices:
            yield Message(index, nearest(owners, rank, matrix.copies), rank, slices)


def nearest(ranks: Iterable[int], rank: int, copies: Sequence[int]) -> int:
    return min(ranks, key=lambda other: (copies[other] != copies[rank], abs(other - rank), other))


def seconds(
    share: Share,
    matrices: Sequence[Matrix],
    ranks: int,
    steps: int,
    item: int,
    rates: OrthogonaliseRates,
) -> float:
    """The forecast of a step's exchange and products, on the ranks that have most to do."""
    work = [0.0] * ranks
    sent: Mapping[str, list[int]] = {"out": [0] * ranks, "in": [0] * ranks}
    collectives = set()
    for index, (matrix, owners) in enumerate(zip(matrices, share.owners)):
        for rank in owners:
            work[rank] += matrix.flops(steps)
        for make in (slices_to_owners, results_from_owners):
            for message in make(index, matrix, owners):
                if message.sender != message.receiver:
                    sent["out"][message.sender] += item * message.elements
                    sent["in"][message.receiver] += item * message.elements
                    collectives.add((share.rounds[index], make))
    return rates.seconds(max(work), max(map(max, sent.values())), len(collectives))
