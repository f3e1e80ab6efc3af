"""What an earlier stage computed, on a stage that runs the same code after it: shape, type, device.

Code between a model's parts adds, normalises and reshapes what blocks return. On a stage that does
not hold those blocks it computes with tensors that have no numbers; that costs no memory and no
time of the device. Where this stage's own work begins, what was received takes the place of such a
tensor, in every variable that holds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import swap_tensors

from stepladder.errors import ModelError
from stepladder.seam.dispatch import operator_name, plain_calls, without_storage, writes_in_place
from stepladder.seam.pytree import tree_leaves, tree_map

# Of these only the shape of what they are given matters, so their result is real.
BY_SHAPE = frozenset(
    {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
    | {"new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"}
)


class RemoteActivation(Tensor):
    """A tensor whose numbers are on another stage."""

    @staticmethod
    def __new__(cls, like: Tensor, device: torch.device) -> Any:
        return without_storage(cls, like, device)

    def __init__(self, like: Tensor, device: torch.device) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RemoteActivation({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Without gradients: a graph would hold the tensors, and none of them could be replaced.
        with torch.no_grad(), plain_calls():
            made = func(*args, **(kwargs or {}))
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        return tree_map(lambda leaf: leaf if id(leaf) in given else without_base(leaf), made)

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
        device = given[0].device
        args, on_meta = tree_map(drawn, (args, kwargs))
        if operator_name(op) in BY_SHAPE:
            return op(*args, **on_meta, **({} if "device" in on_meta else {"device": device}))
        if "device" in on_meta:
            on_meta["device"] = torch.device("meta")
        try:
            made = op(*args, **on_meta)
        except (RuntimeError, NotImplementedError) as error:
            raise needs_numbers(operator_name(op), error) from error
        if writes_in_place(op) and not isinstance(made, tuple | list):
            return given[0] if made is None else cls(made, device)
        return tree_map(lambda leaf: cls(leaf, device) if isinstance(leaf, Tensor) else leaf, made)


def drawn(value: Any) -> Any:
    """The tensor on the meta device: a view of the same shape and strides."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def without_base(value: Any) -> Any:
    """A view as a tensor of its own: a base that has views cannot be replaced."""
    if not isinstance(value, RemoteActivation):
        return value
    return RemoteActivation(drawn(value), value.device)


def replace_everywhere(remote: Tensor, received: Tensor) -> None:
    """Let every variable that holds `remote` hold `received` from now on."""
    try:
        swap_tensors(remote, received)
    except RuntimeError as error:
        raise ModelError(
            "layout.pipeline",
            "what flows between blocks is kept by an operation that earlier stages run "
            f"({str(error).splitlines()[0]})",
            "Move that operation into a block, or use pipeline=1.",
        ) from error


def needs_numbers(operation: str, error: Exception) -> ModelError:
    return ModelError(
        "layout.pipeline",
        f"'{operation}' needs the numbers of an activation on a stage that does not have them "
        f"({str(error).splitlines()[0]})",
        "Compute it inside a block, or use pipeline=1.",
    )
