"""What the site's build does besides: its version and home, pictures, the planner as a page."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from stepladder.version import VERSION

PYODIDE = "STEPLADDER_PYODIDE"  # the folder of npm's package, where the planner is to have its page
PLANNER = "planner_page.html"
HOME = "STEPLADDER_REPOSITORY"  # the repository's address, where git does not know it


def on_config(config: Any) -> None:
    config["copyright"] = f"stepladder {VERSION}"
    if home := repository():
        config["repo_url"], config["repo_name"] = home, f"stepladder {VERSION}"


def repository() -> str:
    """The address of the repository for a browser; empty where it has none."""
    asked = ["git", "-C", str(Path(__file__).parent), "remote", "get-url", "origin"]
    known = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return web_address(os.environ.get(HOME) or known.strip())


def web_address(address: str) -> str:
    """https://host/path of what git is given, such as git@host:path.git; empty for a folder."""
    ssh = re.fullmatch(r"(?:ssh://)?git@([^:/]+)[:/](.+)", address)
    if ssh:
        address = f"https://{ssh[1]}/{ssh[2]}"
    return address.removesuffix(".git") if address.startswith("https://") else ""


def on_pre_build(config: Any) -> None:
    load("figures").main()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    link = f"[Open it here]({PLANNER}), without a server." if os.environ.get(PYODIDE) else ""
    return markdown.replace("<!-- planner page -->", link)


def on_post_build(config: Any) -> None:
    if folder := os.environ.get(PYODIDE):
        load("standalone_planner").main(Path(folder), Path(config["site_dir"]) / PLANNER)


def load(name: str) -> Any:
    """A script beside the pages, which is no package's."""
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docs_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
