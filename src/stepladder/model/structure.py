"""What a module is made of besides tensors: its classes, and the settings that they were given.

Two models may have the same names and shapes and compute different things: another number of heads,
another activation. A checkpoint stores this description, and a run that resumes compares its own.
It is taken before training; attributes that methods write to are counters or caches, not settings.
"""

from __future__ import annotations

import dis
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import nn

LONGEST = 64  # items of a list or dictionary that still is a setting
# They change how a pass is made, not what a model computes once it is trained.
SKIPPED = {"training", "inplace", "gradient_checkpointing", "use_cache"}
REGULARISERS = ("drop", "identity", "stochasticdepth")  # in the name of a class, in lower case

Description = Mapping[str, Any]


def describe_structure(module: nn.Module) -> dict[str, dict[str, Any]]:
    """By name of each submodule its class and its settings, as JSON values."""
    return {
        name: {"class": type(part).__qualname__, **dict(settings_of(part))}
        for name, part in module.named_modules(remove_duplicate=False)
    }


def settings_of(part: nn.Module) -> Iterator[tuple[str, Any]]:
    kind: Any = type(part)
    written = written_by_methods(kind)
    for word, value in vars(part).items():
        if word.startswith("_") or word in SKIPPED or word in written:
            continue
        plain = to_plain(value)
        if plain is not None:
            yield word, plain


@cache
def written_by_methods(kind: type) -> frozenset[str]:
    """Attributes that the class's methods set outside `__init__`."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base is nn.Module:
            break
        for name, method in vars(base).items():
            if isinstance(method, FunctionType) and name not in ("__init__", "__setstate__"):
                steps = dis.get_instructions(method)
                found |= {str(one.argval) for one in steps if one.opname == "STORE_ATTR"}
    return frozenset(found)


def to_plain(value: Any, depth: int = 3) -> Any:
    """A setting as a JSON value; None for what is none."""
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return {"function": value.__name__}
    if isinstance(value, torch.dtype):
        return str(value)
    if not depth:
        return None
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name, None) for field in fields(value)}
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, dict) and len(value) <= LONGEST:
        made = {str(key): to_plain(one, depth - 1) for key, one in value.items()}
        return {key: one for key, one in made.items() if one is not None}
    if isinstance(value, list | tuple) and len(value) <= LONGEST:
        return [to_plain(one, depth - 1) for one in value]
    return None


def compare_structures(saved: Description, here: Description) -> tuple[list[str], list[str]]:
    """Why it is another model, and what else is set otherwise, each in words."""
    other: list[str] = []
    said: list[str] = []
    for name in sorted({*saved, *here}):
        was, now = saved.get(name), here.get(name)
        if not isinstance(was, Mapping) or not isinstance(now, Mapping):
            only = now if isinstance(now, Mapping) else was if isinstance(was, Mapping) else {}
            found = f"'{name}', a {only.get('class')}, is only {'here' if now else 'there'}"
            (said if regularises(only) else other).append(found)
            continue
        for word in [word for word in was if word in now]:
            if word == "class" and was[word] != now[word]:
                found = f"'{name}' is a {was[word]} there and a {now[word]} here"
                (said if regularises(was) and regularises(now) else other).append(found)
            elif word != "class" and not same(was[word], now[word]):
                full = f"{name}.{word}" if name else word
                found = f"'{full}' is {shown(was[word])} there and {shown(now[word])} here"
                soft = regularises(now) or not is_hard(was[word], now[word])
                (said if soft else other).append(found)
    return other, said


def regularises(description: Description) -> bool:
    """Whether a module only acts while training: changing it is a choice, not another model."""
    return any(word in str(description.get("class")).lower() for word in REGULARISERS)


def same(one: Any, other: Any) -> bool:
    return bool(one == other)


def is_hard(was: Any, now: Any) -> bool:
    """Whether the difference is in a number of something, a switch or a function: numbers with a
    fraction and texts are often tuned, or name a file."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        return any(
            not same(was[key], now[key]) and is_hard(was[key], now[key])
            for key in was
            if key in now
        ) or ("function" in was and was != now)
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return any(not same(a, b) and is_hard(a, b) for a, b in zip(was, now))
    return not isinstance(was, float | str) and not isinstance(now, float | str)


def shown(value: Any) -> str:
    if isinstance(value, Mapping) and "function" in value:
        return str(value["function"])
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
