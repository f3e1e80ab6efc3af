"""A real browser for tests of pages: Debian's chromium, driven by playwright.

`apt-get install chromium` brings the browser; without one such tests are skipped.
"""

import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_chromium = pytest.mark.skipif(
    not CHROMIUM, reason="no chromium here: apt-get install chromium"
)
PATIENCE_MS = 60_000  # the machine may be busy


@contextmanager
def started_browser():
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield started
        started.close()
