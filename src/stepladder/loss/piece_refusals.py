"""Why a loss cannot be computed in pieces of a batch, in one line each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepladder.errors import ModelError

from .find_weighting import propose
from .observe_pieces import Observation

UNCUT = "Do not cut the batch: one rank, without micro= and accumulate="


def cannot_cut(seen: Sequence[Observation], sizes: Sequence[int]) -> ModelError:
    usual = next(propose(seen[0].batch, []))
    finite = [one for one in seen if math.isfinite(one.whole)]
    worst = max(finite, key=lambda one: one.error(usual))
    return ModelError(
        "loss",
        f"is {worst.whole:.6g} for {sum(sizes)} rows at once and {worst.combined(usual):.6g} for "
        f"the same rows in pieces of {listed(sizes)}, and no weighting of the pieces makes up for "
        "it",
        f"{UNCUT}; or use a loss that is a sum or one mean over rows or targets.",
    )


def other_gradient(error: float, sizes: Sequence[int]) -> ModelError:
    return ModelError(
        "loss",
        f"is the same for {sum(sizes)} rows at once and in pieces of {listed(sizes)}, and its "
        f"gradient is not: it differs by {error:.2g} of its size",
        f"{UNCUT}; or do not detach what the loss divides by.",
    )


def changes_buffer(name: str) -> ModelError:
    return ModelError(
        "loss",
        f"changes its buffer '{name}' in every call, and a batch is computed in pieces",
        f"{UNCUT}; or put that part of the loss into eval().",
    )


def listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" and {sizes[-1]}"
