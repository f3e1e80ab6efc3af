"""The named terms of a loss, added up over a batch's micro-batches and ranks as the loss is."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepladder.errors import ModelError
from stepladder.world import World


@dataclass(slots=True)
class LossTerms:
    """What a batch's terms have come to; without any where the loss is one number."""

    names: tuple[str, ...] | None = None  # of all ranks; None: none has computed a loss yet
    own: tuple[str, ...] | None = None  # of this rank
    computed: dict[str, Tensor] = field(default_factory=dict)  # of the last micro-batch, unweighted
    sums: dict[str, Tensor] = field(default_factory=dict)  # of the batch, on the device

    def start(self) -> None:
        """Begin another batch."""
        self.computed, self.sums = {}, {}

    def add(self, weight: float | Tensor) -> None:
        """Add the last micro-batch's terms, as its loss is weighted."""
        for name, value in self.computed.items():
            weighted = times(value.detach().float(), weight)
            self.sums[name] = self.sums[name] + weighted if name in self.sums else weighted

    def compute(self, terms: dict[str, Tensor]) -> None:
        """Keep the terms of a micro-batch, which are the same in all of them."""
        names, before = tuple(terms), self.names if self.own is None else self.own
        if before is not None and names != before:
            raise ModelError(
                "loss",
                f"returned {listed(names)}, and {listed(before)} before",
                "Return the same names in the same order every time.",
            )
        self.computed, self.own = terms, names

    def sum(self, loss: Tensor, world: World, *axes: str, possible: bool) -> Tensor:
        """The loss of all ranks along `axes`; the terms are summed with it, in one collective.

        Args:
            possible: whether this kind of loss may have terms.
        """
        if self.names is None and possible:
            self.agree(world)
        if not self.names:
            return world.sum(loss, *axes)
        zero = loss.new_zeros(())
        own = [self.sums.get(name, zero) for name in self.names]
        both = world.sum(torch.stack([loss, *own]), *axes)
        self.sums = dict(zip(self.names, both[1:].unbind()))
        return both[0]

    def agree(self, world: World) -> None:
        """Learn the names from a rank that computed a loss: others may have had no rows, or none
        of the last stage."""
        texts = world.gather_texts("" if self.own is None else json.dumps(self.own))
        found = {tuple(json.loads(text)) for text in texts if text}
        if len(found) > 1:
            raise ModelError(
                "loss",
                f"returned {' on one rank and '.join(sorted(map(listed, found)))} on another",
                "Return the same names in the same order on every rank.",
            )
        self.names = next(iter(found), None)


def without_gradient(terms: dict[str, Tensor]) -> list[str]:
    """Events: terms that nothing is learnt from, and that the reported loss holds all the same."""
    return [
        f"loss.{name}: has no gradient in the first step and is added to the reported loss; to see "
        "it alone, leave it out and log it with run.log"
        for name, term in terms.items()
        if not term.requires_grad
    ]


def listed(names: tuple[str, ...]) -> str:
    return f"the terms {', '.join(names)}" if names else "one number"


def times(loss: Tensor, factor: float | Tensor) -> Tensor:
    """A product; by one it would only cost the host two launches."""
    return loss if isinstance(factor, (int, float)) and factor == 1 else loss * factor
