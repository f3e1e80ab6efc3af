"""What may be known of a part that lives on another stage: shapes and types, never values.

Code between a model's parts asks for such things: the type of a patch embedding's weight, the
length of a table. A copy of the part on the meta device answers. Computing with it is an error that
names the part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.seam.pytree import tree_leaves, tree_map

KNOWN = ("dtype", "shape", "ndim", "requires_grad", "size", "dim", "numel", "is_floating_point")


class RemoteTensor:
    """A tensor or module of a drawing, of which only what is not a number may be read."""

    def __init__(self, what: str, drawn: Any) -> None:
        self._what, self._drawn = what, drawn

    def __getattr__(self, word: str) -> Any:
        if isinstance(self._drawn, Tensor) and word not in KNOWN:
            raise not_on_this_stage(self._what)
        value = getattr(self._drawn, word)
        return RemoteTensor(self._what, value) if isinstance(value, Tensor | nn.Module) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise not_on_this_stage(self._what)

    __getitem__ = __iter__ = __call__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        met = [one for one in tree_leaves((args, kwargs)) if isinstance(one, RemoteTensor)]
        raise not_on_this_stage(met[0]._what)


def not_on_this_stage(what: str) -> ModelError:
    return ModelError(
        "layout.pipeline",
        f"{what} is read on a stage that does not hold it",
        "Read it inside that part's forward, or use pipeline=1.",
    )


def zeros_as_output(drawn: nn.Module, like: Callable[[], Tensor]) -> Callable[..., Any]:
    """Zeros shaped as a part would answer, for code whose result nobody reads.

    Args:
        like: what flows here instead; where the part cannot be drawn at work, its shape serves.
    """

    def zeros(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        dtype = like().dtype if tensor.is_floating_point() else tensor.dtype
        return torch.zeros(tensor.shape, dtype=dtype, device=like().device)

    @torch.no_grad()
    def answer(args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(on_meta, (args, kwargs))
        try:
            made = drawn(*args, **kwargs)
        except Exception:  # it looks at numbers, or calls what has no drawing
            return torch.zeros_like(like(), requires_grad=False)
        return tree_map(zeros, made)

    return answer


def on_meta(value: Any) -> Any:
    return value.to("meta") if isinstance(value, Tensor) else value
