"""What a loss function keeps between its calls, so that trials can leave it as it was.

A copy of a function shares its closure and its globals with the original: a counter, a running mean
or an exponential average would be moved on by every trial. What is plain (numbers, tensors, arrays,
containers and objects of these) is noted before a trial and put back after it. A loss that holds
anything else, such as another network, is refused, and no plan is tried.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.world.generator_state import generator_state, set_generator_state

FROZEN = (bool, int, float, complex, str, bytes, type(None), type, ModuleType, BuiltinFunctionType,
          torch.dtype, torch.device, range, slice, frozenset, np.ufunc, np.generic)  # fmt: skip
LIBRARIES = frozenset({"torch", "numpy", "math", "functools", "operator", "transformers"})
MOST = 1000  # values that are looked at

Restore = Callable[[], None]


@contextmanager
def loss_state_kept(loss: Any) -> Iterator[None]:
    """A context after which a loss that is no module holds what it held before."""
    restores: list[Restore] = []
    if not isinstance(loss, nn.Module):
        note(loss, restores, set())
    try:
        yield
    finally:
        for restore in restores:
            restore()


def note(value: Any, restores: list[Restore], seen: set[int]) -> None:
    """Enter into `restores` how a value and all that it holds are put back."""
    if isinstance(value, FROZEN) or id(value) in seen:
        return
    seen.add(id(value))
    if len(seen) > MOST:
        raise refused(f"more than {MOST} values")
    for part in parts_of(value, restores):
        note(part, restores, seen)


def parts_of(value: Any, restores: list[Restore]) -> list[Any]:
    """What a value holds; how its own contents are put back goes into `restores`."""
    match value:
        case FunctionType():
            return parts_of_function(value, restores)
        case MethodType():
            return [value.__self__, value.__func__]
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
        case nn.Module():
            raise refused(f"the module {type(value).__name__}")
        case Tensor():
            restores.append(partial(put_back_tensor, value, value.detach().clone()))
            return []
        case torch.Generator() | np.random.Generator() | np.random.RandomState() | random.Random():
            restores.append(partial(set_generator_state, value, generator_state(value)))
            return []
        case np.ndarray():
            restores.append(partial(np.copyto, value, value.copy()))
            return []
        case tuple():
            return list(value)
        case list() | deque() | set():
            restores.append(partial(put_back_items, value, list(value)))
            return list(value)
        case dict():
            restores.append(partial(put_back_dict, value, dict(value)))
            return list(value.values())
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict) or hasattr(value, "__next__"):
        raise refused(f"a {type(value).__name__}")
    methods = [vars(kind).get("__call__") for kind in type(value).__mro__]
    return [own, *(method for method in methods if isinstance(method, FunctionType))]


def parts_of_function(function: FunctionType, restores: list[Restore]) -> list[Any]:
    if (function.__module__ or "").partition(".")[0] in LIBRARIES:
        return []
    cells = [cell for cell in function.__closure__ or () if has_contents(cell)]
    restores += [partial(setattr, cell, "cell_contents", cell.cell_contents) for cell in cells]
    names = names_in(function.__code__) & function.__globals__.keys()
    read = {name: function.__globals__[name] for name in names}
    restores.append(partial(function.__globals__.update, read))
    kept = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*(cell.cell_contents for cell in cells), *kept, *read.values()]


def names_in(code: CodeType) -> set[str]:
    """Names that code and the code inside it looks up."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


def has_contents(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


@torch.no_grad()
def put_back_tensor(tensor: Tensor, before: Tensor) -> None:
    if not torch.equal(tensor, before):
        tensor.copy_(before)


def put_back_items(items: Any, before: list[Any]) -> None:
    items.clear()
    items.update(before) if isinstance(items, set) else items.extend(before)


def put_back_dict(items: dict[Any, Any], before: dict[Any, Any]) -> None:
    items.clear()
    items.update(before)


def refused(what: str) -> ModelError:
    return ModelError("loss", f"holds {what}, which trials would share with the run")
