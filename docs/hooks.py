"""What the site's build does first: draw the pictures its pages show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def on_pre_build(config: Any) -> None:
    path = Path(config["docs_dir"]) / "figures.py"
    spec = importlib.util.spec_from_file_location("docs_figures", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
