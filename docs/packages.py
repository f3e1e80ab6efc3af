"""Writes docs/packages.md's list of names: `python docs/packages.py` (a test holds the page to it).

Every name that a package's `__init__` exports is there; a name that the page of the Python
reference has is a link to it. What is shown of a name is its docstring, which the site's build
reads.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import stepladder

DOCS = Path(__file__).parent
PAGE, REFERENCE = DOCS / "packages.md", DOCS / "reference.md"
ASKED = re.compile(r"<!-- packages -->\n.*<!-- end -->", re.DOTALL)


def doors() -> list[str]:
    """The packages directly below stepladder that export names."""
    root = Path(stepladder.__file__).parent
    names = (path.parent.name for path in sorted(root.glob("*/__init__.py")))
    return [name for name in names if hasattr(import_package(name), "__all__")]


def import_package(name: str) -> ModuleType:
    return importlib.import_module(f"stepladder.{name}")


def referenced() -> list[str]:
    """The paths that the page of the Python reference shows."""
    return re.findall(r"^::: (\S+)", REFERENCE.read_text(), re.MULTILINE)


def home(package: str, name: str) -> str:
    """The path under which the name is defined; of a constant the package's own."""
    value = getattr(import_package(package), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}.{value.__qualname__}"
    return f"stepladder.{package}.{name}"


def section(package: str) -> str:
    """A package: what it is, links to what the reference has, and all other names."""
    said = (import_package(package).__doc__ or "").strip().splitlines()[0]
    paths = [home(package, name) for name in import_package(package).__all__]
    known = [path for path in paths if path in referenced()]
    links = ", ".join(f"[`{p.rpartition('.')[2]}`](reference.md#{p})" for p in known)
    lines = [f"## stepladder.{package}", said]
    lines += [f"In the Python reference: {links}."] if known else []
    lines += [f"::: {path}" for path in paths if path not in known]
    return "\n\n".join(lines)


def filled(page: str) -> str:
    """The page with its list of names written anew."""
    listed = "\n\n".join(map(section, doors()))
    return ASKED.sub(lambda _: f"<!-- packages -->\n{listed}\n<!-- end -->", page)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
