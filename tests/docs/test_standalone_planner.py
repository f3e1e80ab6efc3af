"""The planner's page without a server: what it holds is enough, and it answers from a disk."""

import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stepladder.cli.main import main
from tests.browser import PATIENCE_MS, needs_chromium

from .site_scripts import load

PYODIDE = os.environ.get("STEPLADDER_PYODIDE", "")


def test_the_planner_in_the_page_needs_nothing_that_is_not_there(tmp_path):
    held = zipfile.ZipFile(io.BytesIO(load("standalone_planner").planner_zip()))
    names = held.namelist()
    assert not any(name.startswith(("stepladder/train", "stepladder/rungs")) for name in names)
    held.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stepladder.cli.planner_page.answers import answer, choices\n"
        "print(answer('forecast', choices({})['start'])['forecast']['fits'])"
    )
    # Isolated and without installed packages: as in a browser, only the standard library is there.
    command = [sys.executable, "-I", "-S", "-c", code]
    assert subprocess.check_output(command, text=True) == "True\n"


@pytest.mark.soak
@pytest.mark.timeout(600)
@needs_chromium
@pytest.mark.skipif(not PYODIDE, reason="STEPLADDER_PYODIDE names no folder: npm pack pyodide")
def test_the_page_from_a_disk_forecasts_what_its_command_does(browser, tmp_path, capsys):
    load("standalone_planner").main(Path(PYODIDE), tmp_path / "planner.html")
    page = browser.new_page()
    page.set_default_timeout(5 * PATIENCE_MS)
    page.goto((tmp_path / "planner.html").as_uri())
    page.wait_for_selector("body[data-drawn]")
    command = page.locator(".command pre").first.inner_text()
    main([*shlex.split(command)[1:], "--json"])
    peak = json.loads(capsys.readouterr().out)["memory"]["peak_bytes"] / 2**30
    assert f"{peak:.3g} of" in page.locator("#verdict").inner_text()
    page.close()
