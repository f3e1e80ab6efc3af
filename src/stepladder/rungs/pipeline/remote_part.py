"""What stands in for a part that lives on another stage.

Called, it answers with tensors of the right shape, type and device but without numbers. Code
between a model's parts also asks parts for attributes: the type of a patch embedding's weight, the
length of a table. A copy of the part on the meta device answers; computing with its parameters is
an error that names the part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model import meta_copy
from stepladder.model.tracing.operation_recorder import tensors_in
from stepladder.seam.modules import names_in
from stepladder.seam.pytree import tree_leaves, tree_map

from .forward_record import Given, TensorShape, described, shape_of, tensors_given
from .remote_activation import RemoteActivation
from .stage_passage import Passage, StageEnd

KNOWN = ("dtype", "shape", "ndim", "requires_grad", "size", "dim", "numel", "is_floating_point")
PLAIN = (bool, int, float, str, type(None))


class RemotePart(nn.Module):
    """In place of a part that lives on another stage.

    It passes for one of the part's class and answers to its plain attributes, and by a drawing of
    the part to questions about its layers, their shapes and types.

    Args:
        results: of the part's calls when the model was traced, for a part that cannot be drawn.
    """

    def __init__(
        self,
        name: str,
        part: nn.Module,
        passage: Passage,
        results: Mapping[tuple[str, int], Any],
    ) -> None:
        super().__init__()
        own = vars(part)
        self.__dict__["_drawn"] = meta_copy(part).eval()  # nothing of it is trained or moved
        self._held = {*names_in(part), *dir(type(part))} - {*dir(nn.Module)}
        self._part, self._passage, self._results = name, passage, results
        self._known: dict[Any, Any] = {}  # results by what was given
        for word, value in own.items():
            plain = not word.startswith("_") and word not in ("training", "forward")
            if plain and not isinstance(value, Tensor):
                self.__dict__[word] = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self._passage.enter(self._part, args, kwargs)
        if self._part == self._passage.ports.last:
            raise StageEnd
        if not self._passage.received:
            raise self._passage.changed_path(f"other parts run ('{self._part}')")
        output = self.answer(call, args, kwargs)
        self._passage.leave(self._part, call, output)
        return output

    def answer(self, call: int, args: Any, kwargs: Any) -> Any:
        """Tensors without numbers, shaped as the part would answer."""
        key = signature(call, args, kwargs)
        if key not in self._known:
            self._known[key] = self.draw(call, args, kwargs)
        flowing, given = self._passage.received[0], tensors_given(args, kwargs)

        def remote(value: Any) -> Any:
            if isinstance(value, Given):
                return given[value.leaf]
            if not isinstance(value, TensorShape):
                return value
            # Whatever a part computes in, what flows out of the blocks has the stream's type.
            dtype = flowing.dtype if value.dtype.is_floating_point else value.dtype
            like = torch.empty(value.shape, dtype=dtype, device="meta")
            return RemoteActivation(like, flowing.device)

        return tree_map(remote, self._known[key])

    @torch.no_grad()
    def draw(self, call: int, args: Any, kwargs: Any) -> Any:
        """The result's containers, with a shape in place of each tensor."""
        on_meta_args, on_meta_kwargs = tree_map(on_meta, (args, kwargs))
        try:
            made = self._drawn(*on_meta_args, **on_meta_kwargs)
        except Exception:  # it looks at numbers, or calls what has no drawing
            given = tensors_in((args, kwargs)) or [self._passage.received[0]]
            traced = self._results.get((self._part, call), shape_of(given[0]))
            first = next((one for one in tree_leaves(traced) if isinstance(one, TensorShape)), None)
            return tree_map(lambda one: shape_of(given[0]) if one is first else one, traced)
        return described(made, tensors_given(on_meta_args, on_meta_kwargs))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what `isinstance` asks for
        drawn = self.__dict__.get("_drawn")
        return RemotePart if drawn is None else type(drawn)

    def __getattr__(self, word: str) -> Any:
        if word in self.__dict__.get("_held", ()):
            what = f"'{word}' of '{self._part}'"
            value = getattr(self._drawn, word)
            return RemoteTensor(what, value) if isinstance(value, Tensor | nn.Module) else value
        return super().__getattr__(word)


class RemoteTensor:
    """A parameter or layer of a drawing, of which only what is not a number may be read."""

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


def signature(call: int, args: Any, kwargs: Any) -> Any:
    """What the shapes of a call's results depend on."""
    leaves = tree_leaves((args, kwargs))
    return call, tuple(
        shape_of(leaf) if isinstance(leaf, Tensor) else leaf if isinstance(leaf, PLAIN) else None
        for leaf in leaves
    )


def on_meta(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype, device="meta")
