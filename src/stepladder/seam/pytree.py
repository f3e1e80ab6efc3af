"""Nested containers of tensors, mapped and flattened.

Torch's own functions know every container that a library has registered, a Hugging Face output
for one. Without them dictionaries, lists, tuples and named tuples are walked here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .lookup import find, has

MAP, LEAVES = "torch.utils._pytree.tree_map", "torch.utils._pytree.tree_leaves"


def look_up() -> None:
    """Find both functions now, before torch.compile traces code that calls them."""
    for path in (MAP, LEAVES):
        has(path)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with the function's result in place of each leaf."""
    return find(MAP)(function, tree) if has(MAP) else plain_map(function, tree)


def tree_leaves(tree: Any) -> list[Any]:
    """All leaves, in order."""
    return find(LEAVES)(tree) if has(LEAVES) else plain_leaves(tree)


def plain_map(function: Callable[[Any], Any], tree: Any) -> Any:
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, plain_map(function, value)) for key, value in tree.items())
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(plain_map(function, value) for value in tree))
    if type(tree) in (list, tuple):
        return type(tree)(plain_map(function, value) for value in tree)
    return function(tree)


def plain_leaves(tree: Any) -> list[Any]:
    leaves: list[Any] = []
    plain_map(leaves.append, tree)
    return leaves
