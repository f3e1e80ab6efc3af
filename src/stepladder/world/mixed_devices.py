"""Where in the user's code tensors of two devices met, in one line instead of torch's traceback.

torch names the devices and not the tensor. The traceback still holds the frames: in the innermost
one that is the user's, in a forward or a loss, the names in the failing statement are looked up,
and the one whose tensor is elsewhere is reported with the line that would move it.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError

from .device_mismatch import on_other_device, tensors_of

SENTENCES = ("same device", "expected device")  # of torch's errors
DEVICES = re.compile(r"\b(?:cpu|cuda|meta|mps|xpu)(?::\d+)?\b")
FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn",
             "randperm", "tensor", "zeros")  # fmt: skip
NOT_THE_USERS = (Path(torch.__file__).parent, Path(__file__).parents[1])


def explain_mixed_devices(
    error: Exception, module: nn.Module, device: torch.device
) -> ModelError | None:
    """Name tensor, module, devices and the line to write; None for an error of another kind."""
    if not isinstance(error, RuntimeError) or not any(word in str(error) for word in SENTENCES):
        return None
    place = find_place(error)
    if place is None:
        return None
    here = next((name for name, t in place.tensors() if not on_other_device(t, device)), "")
    target = f"{here}.device" if here else f"'{device}'"
    beside = f"'{here}'" if here else "the run"
    where = f"is on {device} ({place})"
    for name, tensor in place.tensors():
        if on_other_device(tensor, device):
            problem = f"'{name}' is on {tensor.device} while {beside} {where}"
            return ModelError(place.owner(module), problem, place.remedy(name, target))
    other = other_device(error, device)
    if made := place.factory():
        text = ast.unparse(made)
        problem = f"'{text}' is made on {other} while {beside} {where}"
        remedy = f"Write {text.removesuffix(')')}, device={target})."
        return ModelError(place.owner(module), problem, remedy)
    problem = f"a tensor is on {other} while {beside} {where}"
    return ModelError(place.owner(module), problem, f"Move it there with .to({target}).")


@dataclass(frozen=True, slots=True)
class FailedStatement:
    """A statement that failed, with its frame."""

    frame: FrameType
    line: int
    statement: ast.stmt | None  # None where there is no source to read

    def __str__(self) -> str:
        file = self.frame.f_code.co_filename
        source = linecache.getline(file, self.line).strip()
        return f"{Path(file).name}:{self.line}: {source}".rstrip(": ")

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that the statement names, or all that its function has where nobody knows."""
        for name in self.names():
            with suppress(Exception):  # a name not set yet, a property that raises
                yield from tensors_of(self.value(name), name)

    def names(self) -> list[str]:
        if self.statement is None:
            return list(self.frame.f_locals)
        found = [
            node
            for node in ast.walk(self.statement)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        ]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        names = dict.fromkeys(ast.unparse(node) for node in found)
        return [name for name in names if re.fullmatch(r"[\w.]+", name)]

    def value(self, name: str) -> Any:
        first, *rest = name.split(".")
        found = {**self.frame.f_globals, **self.frame.f_locals}[first]
        for word in rest:
            found = getattr(found, word)
        return found

    def owner(self, module: nn.Module) -> str:
        """The module whose forward it is, by name and class; else the function."""
        running = self.frame.f_locals.get("self")
        if not isinstance(running, nn.Module):
            return self.frame.f_code.co_qualname.rpartition("<locals>.")[2]
        names = (name for name, part in module.named_modules() if part is running)
        name, kind = next(names, ""), type(running).__name__
        return f"{kind} '{name}'" if name else kind

    def remedy(self, name: str, target: str) -> str:
        first, _, attribute = name.partition(".")
        owner = self.frame.f_locals.get(first)
        if isinstance(owner, nn.Module) and attribute.isidentifier():
            return (
                f"In its __init__ write self.register_buffer('{attribute}', ...) where it sets "
                f"self.{attribute}: a buffer moves with the module."
            )
        if name in self.frame.f_code.co_varnames:
            return f"Add {name} = {name}.to({target}) before that line."
        return f"Write {name}.to({target}) in that line."

    def factory(self) -> ast.Call | None:
        """The first call in the statement that makes a tensor and names no device."""
        calls = (node for node in ast.walk(self.statement or ast.Pass()) if is_factory(node))
        return next(calls, None)


def is_factory(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    named = ast.unparse(node.func.value) == "torch" and node.func.attr in FACTORIES
    return named and not any(keyword.arg == "device" for keyword in node.keywords)


def find_place(error: Exception) -> FailedStatement | None:
    """The innermost statement of the traceback that is neither torch's nor ours."""
    found, step = None, error.__traceback__
    while step is not None:
        path = Path(step.tb_frame.f_code.co_filename)
        if not any(path.is_relative_to(folder) for folder in NOT_THE_USERS):
            found = step.tb_frame, step.tb_lineno
        step = step.tb_next
    if found is None:
        return None
    frame, line = found
    return FailedStatement(frame, line, statement_at(frame.f_code.co_filename, line))


def statement_at(file: str, line: int) -> ast.stmt | None:
    """The shortest statement around a line."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


def other_device(error: Exception, device: torch.device) -> str:
    """A device in torch's sentence that is not the run's."""
    others = (n for n in DEVICES.findall(str(error)) if torch.device(n).type != device.type)
    return next(others, "another device")
