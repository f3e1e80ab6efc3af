"""A real browser for tests of pages: Debian's chromium, driven by playwright.

`apt-get install chromium` brings the browser; without one such tests are skipped.
"""

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no chromium here: apt-get install chromium"
)
PATIENCE_MS = 60_000  # the machine may be busy
AXE = Path(__file__).parents[1] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def started_browser():
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield started
        started.close()


def serious_findings(page):
    """What axe calls serious or worse, everything on the page unfolded."""
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(axe_script())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        (one["id"], one["nodes"][0]["html"][:120])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def axe_script():
    """axe-core's script, which npm brings; it is in no wheel and no lock."""
    npm = shutil.which("npm")
    if not AXE.is_file() and npm:
        words = [npm, "install", "--no-audit", "--no-fund", "--prefix", AXE.parents[2], "axe-core"]
        subprocess.run(words, capture_output=True, timeout=300, check=False)
    if not AXE.is_file():
        pytest.skip("no axe-core here: npm install --prefix build/axe axe-core")
    return AXE.read_text()
