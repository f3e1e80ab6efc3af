"""A user's own model, named in a recipe as `package.module:function`.

A recipe is data and not code, so it may call only an nn.Module class, or a function annotated to
return one, and not from the standard library. The module is imported from Python's path, then from
the working folder, so that a file next to the recipe is found on one rank or many.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, StepladderError, nearest
from stepladder.seam.modules import has_pre_hooks

from .build import FAMILIES

NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_user_model(text: str) -> bool:
    """Whether the text is `package.module:function`; `llama:…` is a shape."""
    return bool(NAME.fullmatch(text)) and text.partition(":")[0] not in FAMILIES


def build_user_model(
    text: str,
    *,
    seed: int = 0,
    sequence: int,
    dropout: float = 0.0,
    weights: str = "",
    packed: bool = False,
) -> nn.Module:
    """Call the named function and return the module it makes, with its own initial values.

    Args:
        sequence: passed if the function has a parameter of that name; so is `dropout`.
        packed: whether the module will read rows of several documents.
    """
    if weights:
        problem = f"'{weights}' is for a model that is a folder, and {text} gives its own values"
        raise PlanError("model.weights", problem, "Load them in it, or leave this out.")
    function = find_function(text)
    signature = inspect.signature(function)
    known: dict[str, float] = {"sequence": sequence, "dropout": dropout}
    given = {name: value for name, value in known.items() if name in signature.parameters}
    if dropout and "dropout" not in given:
        remedy = "Give it one, or leave model.dropout out."
        raise PlanError("model.dropout", f"{text} has no parameter 'dropout'", remedy)
    try:
        signature.bind(**given)
    except TypeError as wanting:
        problem = f"{text} cannot be called by its name alone ({wanting})"
        raise PlanError(
            "model", problem, "Only sequence and dropout are given: the rest needs defaults."
        ) from wanting
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = call_builder(text, function, given)
    if packed:
        check_takes_documents(text, module)
    return module


def check_takes_documents(text: str, module: nn.Module) -> None:
    """Refuse packed rows for a module whose forward takes no document numbers."""
    takes = inspect.signature(module.forward).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    if "documents" not in takes and not open_ended and not has_pre_hooks(module):
        raise PlanError(
            "data.packed",
            f"the forward of {text} takes no 'documents', by which packed rows are told apart",
            "Give it tokens, documents and positions, or leave data.packed out.",
        )


def call_builder(text: str, function: Callable[..., object], given: dict[str, float]) -> nn.Module:
    try:
        made = function(**given)
    except StepladderError:
        raise
    except Exception as broken:
        raise ModelError("model", f"{text} failed ({error_line(broken)})", "Mend it.") from broken
    if not isinstance(made, nn.Module):
        problem = f"{text} returned {type(made).__name__}, not a module"
        raise ModelError("model", problem, "Return a torch.nn.Module.")
    return made


def find_function(text: str) -> Callable[..., object]:
    """The named class or function, after checking that it makes a module."""
    name, _, attribute = text.partition(":")
    module = find_module(name, attribute)
    found = getattr(module, attribute, None)
    if found is None:
        makers = [one for one, value in vars(module).items() if makes_module(value)]
        remedy = nearest(attribute, makers) if makers else "Name one that it has."
        raise PlanError("model", f"{name} has no '{attribute}'", remedy)
    if not makes_module(found):
        raise PlanError(
            "model",
            f"{text} does not say that it makes a module",
            f"Write 'def {attribute}(…) -> torch.nn.Module:', or name a class of modules.",
        )
    return found


def find_module(name: str, attribute: str) -> ModuleType:
    if name.endswith(".py"):
        problem = f"'{name}' is a file, and a model is named by its module"
        raise PlanError("model", problem, f"Write {name.removesuffix('.py')}:{attribute}.")
    if name.partition(".")[0] in sys.stdlib_module_names:
        problem = f"'{name}' is a module of Python's own, which makes no models"
        raise PlanError("model", problem, "Name one of yours.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that it cannot hide an installed package
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as broken:
        if isinstance(broken, ModuleNotFoundError) and f"{name}.".startswith(f"{broken.name}."):
            problem = f"there is no module '{broken.name}', neither installed nor in this folder"
            raise PlanError("model", problem, "Check its name.") from broken
        problem = f"{name} cannot be imported ({error_line(broken)})"
        raise ModelError("model", problem, "Mend it.") from broken


def makes_module(found: object) -> bool:
    """Whether this is an nn.Module class, or a function annotated to return one."""
    if not isinstance(found, type):
        try:
            found = get_type_hints(found).get("return")
        except (
            TypeError,
            NameError,
            AttributeError,
        ):  # no function, or annotations that cannot be resolved
            return False
    return isinstance(found, type) and issubclass(found, nn.Module)


def error_line(error: BaseException) -> str:
    """The error's type, its first line, and where it was raised."""
    said = str(error).strip().partition("\n")[0]
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said} ({Path(frame.filename).name}:{frame.lineno})"
