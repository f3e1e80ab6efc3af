"""Imports what the user named, and calls it; what goes wrong there is reported in one line.

A file is imported with its folder first on Python's path, as `python file.py` has it, so that it
can import the files beside it. A module is found on Python's path, then in the working folder. It
is imported once a process: what stands side by side in a file shares its classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from stepladder.errors import ModelError, PlanError, StepladderError, nearest
from stepladder.plan.reference import Reference

OWN_FOLDERS: set[Path] = set()  # of the files that were imported
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def find_named(reference: Reference, field: str) -> Any:
    """What the reference names.

    Args:
        field: of the command or recipe, for messages.
    """
    module = import_place(reference, field)
    found = getattr(module, reference.name, None)
    if found is None:
        here = [name for name, value in vars(module).items() if is_own(value, module)]
        remedy = nearest(reference.name, here) if here else "Name one that it has."
        raise PlanError(field, f"{reference.place} has no '{reference.name}'", remedy)
    return found


def find_function(reference: Reference, field: str) -> Callable[..., Any]:
    """The function or class that the reference names."""
    found = find_named(reference, field)
    if not callable(found):
        problem = f"{reference} is of type {type(found).__name__}, which cannot be called"
        raise PlanError(field, problem, "Name a function or a class.")
    return found


def call_named(reference: Reference, field: str, **given: Any) -> Any:
    """What the named function returns."""
    function = find_function(reference, field)
    try:
        return function(**given)
    except StepladderError:
        raise
    except Exception as broken:
        problem = f"{reference} failed ({error_line(broken)})"
        raise ModelError(field, problem, "Mend it.") from broken


def has_function(reference: Reference, field: str) -> bool:
    """Whether there is a function or class of that name."""
    return callable(getattr(import_place(reference, field), reference.name, None))


def is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def import_place(reference: Reference, field: str) -> ModuleType:
    """The file or module that a reference leads to, imported."""
    if reference.is_file:
        return import_file(reference, field)
    name = reference.place
    if name.partition(".")[0] in sys.stdlib_module_names:
        problem = f"'{name}' is a module of Python's own"
        raise PlanError(field, problem, "Name one of yours.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last, so that it cannot hide an installed package
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as broken:
        if isinstance(broken, ModuleNotFoundError) and f"{name}.".startswith(f"{broken.name}."):
            problem = f"there is no module '{broken.name}', neither installed nor in this folder"
            raise PlanError(field, problem, "Check its name.") from broken
        raise not_imported(name, field, broken) from broken
    if module.__file__:
        OWN_FOLDERS.add(Path(module.__file__).parent)
    return module


def import_file(reference: Reference, field: str) -> ModuleType:
    path = Path(reference.place).expanduser().resolve()
    if not path.is_file():
        problem = f"there is no file {reference.place}"
        raise PlanError(field, problem, f"Write the path to it: path/file.py:{reference.name}.")
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    OWN_FOLDERS.add(path.parent)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
    except BaseException as broken:
        del sys.modules[name]
        if isinstance(broken, StepladderError | KeyboardInterrupt):
            raise
        raise not_imported(reference.place, field, broken) from broken
    return module


def module_name(path: Path) -> str:
    """The file's own name, by which workers can import it too; longer where another has that."""
    known = sys.modules.get(path.stem)
    if known is None or getattr(known, "__file__", None) == str(path):
        return path.stem
    return f"{path.stem}_in_{path.parent.as_posix().replace('/', '_').replace('.', '_')}"


def not_imported(place: str, field: str, broken: BaseException) -> ModelError:
    remedy = "Mend it."
    if isinstance(broken, ImportError) and "relative import" in str(broken):
        remedy = (
            f"Name it as part of its package: {dotted(Path(place))}:NAME, from the folder that "
            "holds the package; or import without the dot."
        )
    return ModelError(field, f"{place} cannot be imported ({error_line(broken)})", remedy)


def dotted(path: Path) -> str:
    """The name by which a package's file is imported: its packages are folders with an __init__."""
    names, folder = [path.stem], path.resolve().parent
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names) if len(names) > 1 else f"package.{path.stem}"


def error_line(error: BaseException) -> str:
    """The error's type and first line, and the last line of the user's own that led to it."""
    said = str(error).strip().partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    frame = (own or frames)[-1]
    if isinstance(error, SyntaxError):  # raised in no frame of theirs
        return f"{type(error).__name__}: {said}"
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}: {said}; {where}: {frame.line}"


def own_traceback(error: BaseException) -> str:
    """The part of an error's traceback in files that the user named, or beside them; else empty."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if Path(frame.filename).parent in OWN_FOLDERS and is_users(frame.filename)
    ]
    if not own:
        return ""
    last = traceback.format_exception_only(error)
    return "".join(["In your code:\n", *traceback.format_list(own), *last])


def is_users(filename: str) -> bool:
    """Whether a file is neither installed, nor Python's, nor this library's."""
    ours = str(Path(__file__).parents[2])
    return not filename.startswith(("<", ours, *INSTALLED))
