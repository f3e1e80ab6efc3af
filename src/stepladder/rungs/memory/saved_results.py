"""Results that selective checkpointing saves, safe from code that writes to them in place.

torch's own contexts save a result itself, and recomputation starts from it: where the block has
written to it meanwhile, as `ReLU(inplace=True)` does behind a linear layer, torch refuses, and
where the write went through a view it cannot see, as in its own GRU and LSTM on CPUs, gradients are
wrong. Here a result is copied before the first write to it. A result that the block returns is not
saved: whoever takes it may write to it, and backward of the block seldom needs it.

Blocks that do neither, as their first call shows, use torch's contexts, which know the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepladder.model import worth_saving
from stepladder.rungs.parameter_shards import local
from stepladder.seam.dispatch import DispatchMode, written_arguments
from stepladder.seam.pytree import tree_leaves, tree_map
from stepladder.seam.storages import storage_id

EXPOSED: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # by block, once it is known


def are_exposed(block: nn.Module) -> bool:
    """Whether results that would be saved may be written to."""
    return EXPOSED.get(block, True)


def checkpoint_exposed(block: nn.Module, call: Callable[..., Any], *values: Any) -> Any:
    """Checkpoint a call selectively, and find out whether it needs this care."""
    saved = SavedResults()

    def saving(*given: Any) -> Any:
        made = call(*given)
        if not saved.complete:
            saved.finish(made)
            EXPOSED[block] = saved.exposed or EXPOSED.get(block, False)
        return made

    def contexts() -> tuple[Any, Any]:
        return Saving(saved), Reusing(saved)

    return checkpoint(
        saving, *values, use_reentrant=False, preserve_rng_state=True, context_fn=contexts
    )


class SavedResults:
    """The results of one call of a block, in the order of its operations."""

    def __init__(self) -> None:
        self.values: list[Any] = []  # None where it is to be recomputed
        self.places: dict[int, list[int]] = {}  # in `values`, by the storage they lie in
        self.complete = False  # whether the forward pass is over
        self.exposed = False  # whether any was written to or returned

    def add(self, made: Any) -> None:
        for tensor in tensors_in(made):
            self.places.setdefault(storage_of(tensor), []).append(len(self.values))
        # Without the graph, which would keep itself alive.
        self.values.append(tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, made))

    def copy_before_write(self, tensor: Tensor) -> None:
        for place in self.places.pop(storage_of(tensor), ()):
            self.exposed = True
            self.values[place] = tree_map(
                lambda x: x.clone() if isinstance(x, Tensor) else x, self.values[place]
            )

    def finish(self, returned: Any) -> None:
        for tensor in tensors_in(returned):
            for place in self.places.pop(storage_of(tensor), ()):
                self.exposed = True
                self.values[place] = None
        self.complete = True
        self.places.clear()

    def take(self, place: int) -> Any:
        """A result, once: recomputation may write to it."""
        if place >= len(self.values):
            return None
        value, self.values[place] = self.values[place], None
        return value


class Saving(DispatchMode):
    """The context of the forward pass."""

    def __init__(self, saved: SavedResults) -> None:
        self.saved = saved

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in written_arguments(op, args, kwargs):
            for tensor in tensors_in(value):
                self.saved.copy_before_write(tensor)
        made = op(*args, **kwargs)
        if worth_saving(op, args, kwargs):
            self.saved.add(made)
        return made


class Reusing(DispatchMode):
    """The context of the recomputation."""

    def __init__(self, saved: SavedResults) -> None:
        self.saved, self.place = saved, 0

    def __enter__(self) -> Any:
        self.place = 0
        return super().__enter__()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not worth_saving(op, args, kwargs):
            return op(*args, **kwargs)
        self.place += 1
        value = self.saved.take(self.place - 1)
        return op(*args, **kwargs) if value is None else value


def tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def storage_of(tensor: Tensor) -> int:
    return storage_id(local(tensor).untyped_storage())
