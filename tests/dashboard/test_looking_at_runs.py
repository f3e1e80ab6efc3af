"""Which of several runs is looked at, and what the cursor reads, in a real browser."""

import os
import time

import pytest

from stepladder.record import Journal, journal_path
from tests.browser import needs_chromium, serious_findings
from tests.dashboard.web.servers import serving

from .browsing import DESKTOP, PHONE, opened
from .runs import write_run

pytestmark = needs_chromium
MIB = 2**20


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
    later = time.time() + 3600  # live for as long as this takes, however busy the machine is
    os.utime(journal_path(folder / "b-live"), (later, later))
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


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_axe_has_no_serious_finding_on_the_page(browser, tmp_path, width, scheme):
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
        assert serious_findings(page) == []


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A short run on a CPU beside one whose throughput counts something else."""
    folder = tmp_path_factory.mktemp("small")
    with Journal(folder / "text") as journal:
        journal.write("start", plan="fp32 pipeline=2", step=0)
        for step in range(40):
            journal.write(
                "step", step=step, loss=3 - step / 50, seconds=0.02, lr=0.0015 - step * 3e-5,
                memory_bytes=454 * MIB, tokens_per_second=6e4, unit="tokens",
            )  # fmt: skip
        owners = {"parameters": 3 * MIB, "activations": MIB, "context": 450 * MIB}
        journal.write("memory", step=0, owners=owners)
        journal.write("collectives", step=10, seconds={"send_recv": 0.01})
        journal.write("collectives", step=20, seconds={"send_recv": 0.02})
        journal.write("device", step=40, utilisation=0.8)
        journal.write("ranks", step=10, own_seconds=[0.02, 0.02], wait_seconds=[0.0, 0.0])
        journal.write("forecast", memory={"parameters": 3 * MIB, "activations": MIB})
        journal.write("summary", steps=40)
    write_short(folder / "images", 20, 1.0, failure="")
    with serving(folder) as address:
        yield address


@pytest.mark.soak
def test_runs_that_count_other_things_are_not_in_one_plot_of_throughput(browser, small):
    with opened(browser, small + "#run=text&run=images") as page:
        assert page.locator("#chart-tokens h3").inner_text().startswith("Throughput, tokens/s")
        assert page.locator("#chart-tokens path.mean").count() == 1
        assert page.locator("#chart-seconds path.mean").count() == 2


@pytest.mark.soak
def test_what_a_process_takes_does_not_hide_the_owners_of_memory(browser, small):
    with opened(browser, small + "#run=text") as page:
        legend = page.locator("#chart-owners .legend").inner_text().split("\n")
        assert legend == ["parameters", "activations", "and 450 MiB of context, which is not drawn"]
        assert page.locator("#chart-owners .area").count() == 2


@pytest.mark.soak
def test_a_colour_with_a_meaning_has_a_key_and_one_reading_has_no_plot(browser, small):
    with opened(browser, small + "#run=text") as page:
        assert page.locator("#chart-collectives .legend").inner_text() == "send recv"
        colour = page.locator("#chart-collectives path.mean").get_attribute("stroke")
        assert colour == "var(--collective-send_recv)"
        assert page.locator("#chart-utilisation").is_hidden()


@pytest.mark.soak
def test_numbers_beside_an_axis_have_all_a_power_or_none(browser, small):
    with opened(browser, small + "#run=text") as page:
        said = page.locator("#chart-lr .plot text[text-anchor=end]").all_text_contents()
        assert len(said) > 2 and all("e-" in one for one in said if one != "0")


BLANK = """() => [...document.querySelectorAll('.columns > .card')].map((card) => {
  const inner = [...card.children].map((one) => one.getBoundingClientRect().bottom);
  return card.getBoundingClientRect().bottom - Math.max(...inner);
})"""


@pytest.mark.soak
def test_cards_are_as_high_as_what_is_in_them(browser, small):
    with opened(browser, small + "#run=text") as page:
        blank = page.evaluate(BLANK)
        assert len(blank) > 3 and max(blank) < 20


@pytest.mark.soak
def test_the_chosen_of_many_runs_is_in_sight_on_a_phone_and_its_tile_names_it(browser, tmp_path):
    for name in ("a-long-name-of-a-run", "another-long-name", "third-of-the-runs", "z-last"):
        write_short(tmp_path / name, 5, 1.0, failure="")
    with (
        serving(tmp_path) as address,
        opened(browser, address + "#run=z-last", viewport=PHONE) as page,
    ):
        box = page.get_by_role("button", name="z-last finished").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
        assert tiles(page).startswith("z-last finished")
