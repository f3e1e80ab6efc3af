"""What a user hands to `step`, as a batch with its place in the run."""

from __future__ import annotations

from typing import Any

from stepladder.data import Batch, walk
from stepladder.errors import DataError


def as_batch(given: Any, position: int, ways: int = 1) -> Batch:
    """A batch from a batch, a pair (inputs, targets), a dict with labels, or inputs alone.

    Args:
        ways: ranks that each hand over as many rows of one global batch.
    """
    if isinstance(given, Batch):
        return given
    made = tuple(given) if isinstance(given, list) else given
    tensors = list(walk(made))
    if not tensors:
        raise DataError(
            "batch",
            f"a {type(given).__name__} holds no tensor",
            "Give step a tensor, a pair (inputs, targets) or a dict of tensors.",
        )
    rows = {len(tensor) for tensor in tensors if tensor.dim()}
    if len(rows) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise DataError(
            "batch", f"its tensors have different numbers of rows: {shapes}", "Give all the same."
        )
    return Batch.of(made, position=position, size=ways * (rows.pop() if rows else 1))
