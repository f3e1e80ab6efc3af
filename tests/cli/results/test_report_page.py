"""The report in a real browser: read by day and by night, on a desk and on a phone."""

import pytest

from stepladder.cli.main import main
from tests.browser import PATIENCE_MS, needs_chromium, serious_findings
from tests.dashboard.runs import write_run

pytestmark = [needs_chromium, pytest.mark.soak]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("report") / "run", steps=60)
    assert main(["report", str(folder)]) == 0
    return f"file://{folder / 'report.html'}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_axe_has_no_serious_finding_and_nothing_is_wider_than_the_screen(
    browser, report, width, scheme
):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(report)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    small = page.evaluate(LETTERS)
    assert serious_findings(page) == []
    context.close()
    assert small >= 7, "px of the smallest letters in a picture"


LETTERS = """() => Math.min(...[...document.querySelectorAll('figure svg text')]
  .map((one) => one.getBoundingClientRect())
  .filter((box) => box.width > box.height).map((box) => box.height))"""
