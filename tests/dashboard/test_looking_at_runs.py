"""Which of several runs is looked at, and what the cursor reads, in a real browser."""

import shutil
import subprocess
from pathlib import Path

import pytest

from stepladder.record import Journal
from tests.browser import needs_chromium
from tests.dashboard.web.servers import serving

from .browsing import DESKTOP, PHONE, opened
from .runs import write_run

pytestmark = needs_chromium
AXE = Path(__file__).parents[2] / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"


def write_short(folder, steps, loss, **ending):
    with Journal(folder) as journal:
        journal.write("start", plan="fp32", step=0)
        for step in range(steps):
            journal.write(
                "step", step=step, loss=loss + step / 100, seconds=0.1, memory_bytes=2**20,
                tokens_per_second=10.0, unit="samples",
            )  # fmt: skip
        journal.write("evaluation", step=steps - 1, loss=loss)
        if ending:
            journal.write("end", **ending)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A run that goes on, a longer one that ended, a shorter one that failed."""
    folder = tmp_path_factory.mktemp("three")
    write_short(folder / "a-long", 200, 1.0, failure="")
    write_short(folder / "b-live", 80, 3.0)
    write_short(folder / "c-failed", 40, 2.0, failure="RuntimeError: no more")
    with serving(folder) as address:
        yield address


def tiles(page):
    return page.locator("#headline").inner_text().replace("\n", " ")


def test_tiles_follow_the_selected_run_and_the_live_one_comes_first(browser, three):
    with opened(browser, three) as page:
        page.wait_for_selector("#comparison tbody tr:nth-child(3)")
        assert "b-live live" in tiles(page) and "Step 80" in tiles(page)
        assert "samples/s" in tiles(page)
        page.get_by_role("cell", name="failed", exact=True).click()
        page.wait_for_selector("#headline:has-text('c-failed')")
        assert "Step 40" in tiles(page) and "failed" in tiles(page)
        page.get_by_role("button", name="a-long", exact=True).last.press("Enter")
        page.wait_for_selector("#headline:has-text('a-long')")
        assert "finished" in tiles(page)
        pressed = page.locator("#comparison [aria-pressed=true]").all_inner_texts()
        assert pressed == ["a-long"]
        assert "c-failed ended by RuntimeError: no more" in page.locator("#notice").inner_text()


def read_at(page, share):
    """What the tooltip says over that share of the loss's plot."""
    box = page.locator("#chart-loss .plot").bounding_box()
    inner = box["width"] - 58 - 14
    page.mouse.move(box["x"] + 58 + share * inner, box["y"] + box["height"] / 2)
    page.wait_for_selector("#tip:not([hidden])")
    return page.locator("#tip").inner_text().replace("\n", " ")


@pytest.mark.soak
def test_the_cursor_reads_only_runs_that_have_that_step(browser, three):
    with opened(browser, three) as page:
        page.wait_for_selector("#comparison tbody tr:nth-child(3)")
        page.wait_for_selector("#chart-loss path.mean >> nth=5", state="attached")
        early, late = read_at(page, 20 / 199), read_at(page, 120 / 199)
        assert early.startswith("step 20") and "a-long · training 1.2" in early
        assert "b-live · training 3.2" in early and "c-failed · training 2.2" in early
        assert late.startswith("step 120") and "a-long · training 2.2" in late
        assert "b-live" not in late and "c-failed" not in late


@pytest.mark.soak
def test_the_cursor_is_right_after_zooming(browser, three):
    with opened(browser, three + "#run=c-failed&run=a-long&steps=100-150") as page:
        page.wait_for_selector("#range:not([hidden])")
        said = read_at(page, 0.5)
        assert said.startswith("step 125") and "a-long 2.25" in said
        assert "c-failed" not in said
        page.get_by_role("button", name="Show the whole run").click()
        page.wait_for_selector("#range", state="hidden")
        assert page.locator("#chart-loss .cursor").count() == 0


@pytest.mark.soak
def test_validation_is_dashed_in_the_plot_and_in_the_legend(browser, three):
    with opened(browser, three) as page:
        key = page.locator("#chart-loss .legend li", has_text="a-long · validation").locator("line")
        line = page.locator("#chart-loss path.mean[stroke-dasharray]").first
        assert key.get_attribute("stroke-dasharray") == line.get_attribute("stroke-dasharray")
        solid = page.locator("#chart-loss .legend li", has_text="a-long · training").locator("line")
        assert solid.get_attribute("stroke-dasharray") is None


@pytest.mark.soak
def test_a_folder_without_a_run_says_so_and_shows_the_first_that_comes(browser, tmp_path):
    with serving(tmp_path) as address:
        page = browser.new_page(viewport=DESKTOP)
        page.goto(address)
        page.wait_for_selector("#empty:has-text('No run here yet.')")
        assert page.locator("section.section:visible").count() == 0
        with Journal(tmp_path / "first") as journal:
            journal.write("start", plan="fp32", step=0)
            page.wait_for_selector("#empty:has-text('first has not reported a step yet.')")
            journal.write("step", step=0, loss=1.0)
            page.wait_for_selector("#chart-loss:visible")
            page.wait_for_selector("#empty", state="hidden")
        page.close()


@pytest.mark.soak
def test_rows_of_cards_are_full_and_a_phone_reads_the_timeline(browser, tmp_path):
    write_run(tmp_path / "run", steps=30)
    with serving(tmp_path) as address:
        with opened(browser, address) as page:
            edges = page.evaluate(RIGHT_EDGES)
            assert edges and max(edges) - min(edges) < 2
        with opened(browser, address, viewport=PHONE) as page:
            letters = page.locator(".timeline text").first
            letters.scroll_into_view_if_needed()
            assert letters.bounding_box()["height"] >= 9


RIGHT_EDGES = """() => [...document.querySelectorAll('.grid')].filter((one) => one.offsetHeight)
  .flatMap((grid) => {
    const boxes = [...grid.children].map((one) => one.getBoundingClientRect());
    const rows = new Map();
    for (const box of boxes.filter((one) => one.height))
      rows.set(box.top, Math.max(rows.get(box.top) ?? 0, box.right));
    return [...rows.values()];
  })"""


@pytest.fixture(scope="module")
def axe():
    """axe-core's script, which npm brings; it is in no wheel and no lock."""
    npm = shutil.which("npm")
    if not AXE.is_file() and npm:
        words = [npm, "install", "--no-audit", "--no-fund", "--prefix", AXE.parents[2], "axe-core"]
        subprocess.run(words, capture_output=True, timeout=300, check=False)
    if not AXE.is_file():
        pytest.skip("no axe-core here: npm install --prefix build/axe axe-core")
    return AXE.read_text()


def findings(page, axe):
    """What axe calls serious or worse, everything on the page unfolded."""
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        (one["id"], one["nodes"][0]["html"][:120])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_axe_has_no_serious_finding_on_the_page(browser, tmp_path, axe, width, scheme):
    write_run(tmp_path / "full", steps=60)
    write_short(tmp_path / "short", 20, 1.0, failure="RuntimeError: no more")
    view = {"width": width, "height": 900}
    with (
        serving(tmp_path) as address,
        opened(browser, address, viewport=view, scheme=scheme, lax=True) as page,
    ):
        page.wait_for_selector("#comparison tbody tr:nth-child(2)")
        page.get_by_role("button", name="full", exact=True).last.click()
        page.wait_for_selector("#headline:has-text('full')")
        assert findings(page, axe) == []
