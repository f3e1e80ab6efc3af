"""Every name that a package exports is on the page of names, or on that of the Python reference."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

from tests.docs.blocks import ROOT
from tests.docs.site_scripts import load

PAGE = (ROOT / "docs" / "packages.md").read_text()


def test_the_names_are_those_that_the_packages_export():
    assert load("packages").filled(PAGE) == PAGE, "run: python docs/packages.py"


def test_no_name_is_on_both_pages():
    packages = load("packages")
    shown = {line.removeprefix("::: ") for line in PAGE.splitlines() if line.startswith("::: ")}
    assert len(shown) > 150 and not shown & set(packages.referenced())


def before_examples(text: str) -> str:
    """The paragraphs before the examples of a page, and the examples."""
    return "\n".join(re.findall(r"[^\n]+(?:\n[^\n]+)*\n\n```python.*?^```", text, re.M | re.S))


def shows_itself(path: str) -> bool:
    """Whether the docstring has an example, which a law runs; modules of errors need none."""
    module, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    return isinstance(value, ModuleType) or ">>>" in (inspect.getdoc(value) or "")


def test_every_name_of_the_reference_is_in_an_example():
    shown = before_examples((ROOT / "docs" / "reference.md").read_text())
    without = [
        path
        for path in load("packages").referenced()
        if not shows_itself(path)
        if not re.search(rf"`{path.rpartition('.')[2]}`|{path.rpartition('.')[2]}\(", shown)
    ]
    assert without == []


def test_a_name_without_an_example_would_be_seen():
    assert not shows_itself("stepladder.record.time_by_cause.Time")
    assert "`Time`" not in before_examples("A `Time`.\n\nMore.\n\n```python\nprint()\n```\n")
