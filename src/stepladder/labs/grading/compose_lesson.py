"""The lesson that checks see: a learner's names, and the given ones where the learner has none.

A check asks for parts by name and for nothing else, so a learner may write them in any structure:
in the starter, in a file of their own, in several. What a lab gives (data, measurements) need not
be repeated, and works with the learner's parts. An adapter is a file that gives each part its name:

    from my_views import View

    def position(index, strides, offset):
        return View(strides, offset).find(index)
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.abc import SourceLoader
from types import ModuleType
from typing import Any

from stepladder.labs.lab import Lab
from stepladder.labs.lesson_text import given_names, names_of, parts, starter

from .finding import Wrong


class Absent:
    """Stands for a part that a learner's file has not: whoever needs it is told so."""

    name: str
    remedy: str

    def __init__(self, name: str, remedy: str) -> None:
        self.__dict__.update(name=name, remedy=remedy)

    def refuse(self, *_: Any, **__: Any) -> Any:
        raise Wrong(f"Your file has no '{self.name}'. {self.remedy}")

    __call__ = __getattr__ = __mro_entries__ = __bool__ = __eq__ = refuse
    __hash__ = object.__hash__


class GivenLoader(SourceLoader):
    """Loads a text as a module whose lines tracebacks and Triton can read."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text = file, text

    def get_filename(self, fullname: str) -> str:
        return self.file

    def get_data(self, path: str) -> bytes:
        return self.text.encode()


def compose_lesson(lab: Lab, own: ModuleType) -> ModuleType:
    """The learner's module, completed by what the lab gives."""
    source = lab.lesson.read_text(encoding="utf-8")
    names = given_names(source)
    if all(hasattr(own, name) for name in names):
        return own
    theirs = {part.name.partition(".")[0] for part in parts(source)}
    remedy = (
        "Write it, or give what does its work that name: "
        f"'stepladder lab start {lab.name} --adapter' writes a file for that."
    )
    filled = {name: getattr(own, name) for name in names if hasattr(own, name)}
    filled |= {name: Absent(name, remedy) for name in theirs - filled.keys()}
    return run_given(f"given_{lab.stem}", without(starter(source), filled.keys()), filled)


def run_given(name: str, text: str, filled: dict[str, Any]) -> ModuleType:
    """A module of what is given, in which the learner's parts stand from the beginning."""
    loader = GivenLoader(f"{name}.py", text)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    lesson = importlib.util.module_from_spec(spec)
    sys.modules[name] = lesson  # dataclasses look their module up
    vars(lesson).update(filled)
    loader.exec_module(lesson)
    return lesson


def without(text: str, names: Any) -> str:
    """A program without the statements that define these names or act on them."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        acting = [node] if isinstance(node, ast.Expr) else decorators
        used = {one.id for act in acting for one in ast.walk(act) if isinstance(one, ast.Name)}
        if used.intersection(names) or set(names).intersection(names_of(node)):
            first = min([node.lineno, *(each.lineno for each in decorators)])
            for line in range(first - 1, node.end_lineno or 0):
                lines[line] = ""
    return "\n".join(lines) + "\n"
