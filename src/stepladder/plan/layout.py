"""The layout of ranks: a grid whose axes run from the slowest link to the fastest.

A rank's coordinates follow from its number by divmod. Ranks that differ only along `tensor` are
neighbours, so they share the fastest link; ranks that differ along `pipeline` are farthest apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from stepladder.errors import PlanError

AXES = ("pipeline", "replicate", "shard", "experts", "context", "tensor")
DATA = ("replicate", "shard", "experts")  # ranks that read different samples
COPIES = ("replicate", "shard", "experts", "context")  # ranks whose gradients are added up
SLICES = ("shard", "experts", "context")  # ranks that hold slices of one copy of the training state
# The same for what the experts axis has already divided.
EXPERT_COPIES, EXPERT_SLICES = ("replicate", "shard", "context"), ("shard", "context")
REST = -1  # "whatever is left", settled once the number of ranks is known


@dataclass(frozen=True, slots=True)
class Layout:
    """A grid of ranks: how many along pipeline, replicate, shard, experts, context and tensor."""

    pipeline: int = 1  # stages of consecutive blocks
    replicate: int = 1  # whole copies of the training state
    shard: int = 1  # slices of the training state
    context: int = 1  # slices of each sequence
    tensor: int = 1  # slices of each matrix
    experts: int = 1  # parts of every mixture's experts; each rank brings samples of its own

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def num_ranks(self) -> int:
        return prod(self.shape)

    @property
    def data_ranks(self) -> int:
        """Ranks that read different samples (data parallelism)."""
        return self.replicate * self.shard * self.experts

    def place(self, rank: int) -> dict[str, int]:
        """The rank's coordinate on every axis."""
        indices: dict[str, int] = {}
        for axis, ways in zip(reversed(AXES), reversed(self.shape)):
            rank, indices[axis] = divmod(rank, ways)
        return {axis: indices[axis] for axis in AXES}

    def data_index(self, rank: int) -> int:
        """This rank's index among the data-parallel ranks."""
        place = self.place(rank)
        return (place["replicate"] * self.shard + place["shard"]) * self.experts + place["experts"]

    def settle(self, num_ranks: int) -> Layout:
        """The layout for `num_ranks` ranks, with an axis of -1 replaced by the remaining ranks."""
        open_axes = [axis for axis in AXES if getattr(self, axis) == REST]
        known = prod(ways for ways in self.shape if ways != REST)
        if not open_axes:
            return self._of(num_ranks)
        if num_ranks % known:
            raise PlanError(
                f"layout.{open_axes[0]}",
                f"{num_ranks} ranks do not divide by the other axes ({known})",
                f"Use a multiple of {known} ranks.",
            )
        return replace(self, **{open_axes[0]: num_ranks // known})

    def _of(self, num_ranks: int) -> Layout:
        if self.num_ranks != num_ranks:
            raise PlanError(
                "layout",
                f"is for {count(self.num_ranks)} ({self}), and there {count(num_ranks, be=True)}",
                f"Use {self.num_ranks}, or leave one axis open with -1.",
            )
        return self

    def problems(self) -> list[PlanError]:
        """Errors in the axis sizes that no model could make right."""
        found = [
            PlanError(
                f"layout.{axis}",
                f"{ways} is not a number of ways to split",
                "Use 1 to leave it out, or -1 for the rest of the ranks.",
            )
            for axis, ways in zip(AXES, self.shape)
            if ways < 1 and ways != REST
        ]
        if self.shape.count(REST) > 1:
            axes = [axis for axis, ways in zip(AXES, self.shape) if ways == REST]
            found.append(
                PlanError("layout", f"{' and '.join(axes)} are both -1", "Leave one of them open.")
            )
        return found

    def __str__(self) -> str:
        used = [f"{axis}={ways}" for axis, ways in zip(AXES, self.shape) if ways != 1]
        return " ".join(used) or "one rank"


def count(ranks: int, *, be: bool = False) -> str:
    """A number of ranks in words."""
    verb = ("is " if ranks == 1 else "are ") if be else ""
    return f"{verb}{ranks} rank{'' if ranks == 1 else 's'}"
