"""The scripts beside the pages (docs/*.py), which are no package's: they come by their path."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from .blocks import ROOT


def load(name: str) -> ModuleType:
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docs_{name}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
