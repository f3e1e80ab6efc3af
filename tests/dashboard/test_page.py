"""The page in a real browser; without one these tests are skipped."""

import signal
import subprocess
import sys
import time

import pytest

from stepladder.record import journal_path
from tests.browser import PATIENCE_MS, needs_chromium
from tests.cli.commands.test_train import TINY
from tests.dashboard.web.servers import serving

from .browsing import DESKTOP, PHONE, opened
from .runs import write_run

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_run(folder / "first")
    write_run(folder / "<img src=x onerror=fail()>", seed=2, finished=False)
    with journal_path(folder / "first").open("ab") as journal:
        journal.write(b'not json\n{"kind":"ste')
    with serving(folder) as address:
        yield address


def any_step(folder):
    path = journal_path(folder)
    return path.exists() and b'"kind":"step"' in path.read_bytes()


def steps_shown(page):
    return int(
        page.locator(".figure", has_text="Step").first.locator("dd").inner_text().replace(",", "")
    )


@pytest.mark.soak
@pytest.mark.timeout(600)  # training starts in two minutes on a crowded machine
def test_a_run_that_trains_is_followed_to_its_end(browser, tmp_path):
    folder = tmp_path / "run"
    words = [
        "--run.folder",
        str(folder),
        "--train.steps",
        "1000000",
        "--train.evaluate_every",
        "40",
    ]
    command = [sys.executable, "-m", "stepladder.cli.main", "train", *TINY, *words, "--json"]
    training = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        while not any_step(folder):
            assert training.poll() is None
            time.sleep(0.1)
        with serving(folder) as address, opened(browser, address) as page:
            first = steps_shown(page)
            while steps_shown(page) == first:
                page.wait_for_timeout(50)
            assert page.locator(".state.live").count() == 1
            page.wait_for_selector("#chart-loss circle")  # a validation loss
            training.send_signal(signal.SIGTERM)
            assert training.wait(120) == 128 + signal.SIGTERM
            page.wait_for_selector(".state.finished")
            assert "training loss" in page.locator("#text-Result").inner_text()
    finally:
        training.kill()
        training.wait()
        training.stdout.close()


def test_every_curve_and_panel_of_a_full_run_is_there(browser, runs, tmp_path):
    with opened(browser, runs + "#run=first") as page:
        page.wait_for_selector("#comparison", state="detached")
        shown = page.locator("figure.card:visible h3 > span:first-child").all_inner_texts()
        assert shown == [
            "Loss", "Gradient norm", "Learning rate", "Loss scale", "val/<b>accuracy",
            "Throughput, tokens/s", "Share of the peak (MFU)", "Step time and data wait",
            "Collectives of a step", "Ranks: own time", "Memory by owner", "Peak memory",
            "Utilisation", "Temperature", "Power",
        ]  # fmt: skip
        assert page.locator("#chart-owners .area").count() == 5
        assert "limit 80 GiB" in page.locator("#chart-owners").inner_text()
        text = page.locator("#cards").inner_text()
        for words in (
            "Forecast against measured", "rank 2 holds the others up: 39% more work",
            "Timeline of step 599",
            "out of memory: half the micro-batch <b>now</b>", "went on from step 590",
            "bound by compute", "bf16 zero3", "because: it fits",
        ):  # fmt: skip
            assert words in text
        assert "1 line of the journal could not be read" in page.locator("#notice").inner_text()
        page.screenshot(path=tmp_path / "desktop.png", full_page=True)
        assert (tmp_path / "desktop.png").stat().st_size > 50_000


@pytest.mark.soak
def test_runs_are_compared_and_a_name_is_only_a_name(browser, runs):
    with opened(browser, runs) as page:
        page.wait_for_selector("#comparison tbody tr:nth-child(2)")
        assert page.locator("img").count() == 1, "the sign beside the title, and no other"
        page.wait_for_selector("#chart-loss path.mean >> nth=3")
        rows = page.locator("#comparison tbody tr td:first-child").all_inner_texts()
        assert sorted(rows) == ["<img src=x onerror=fail()>", "first"]
        strokes = [
            one.get_attribute("stroke") for one in page.locator("#chart-loss path.mean").all()
        ]
        assert len({*strokes}) == len(strokes) == 4, "no colour twice"
        page.get_by_role("button", name="first finished").click()
        page.wait_for_selector("#compare", state="hidden")
        assert page.locator("#chart-loss path.mean").count() == 2  # training and validation


@pytest.mark.soak
def test_a_range_can_be_dragged_and_is_asked_of_the_server(browser, runs):
    with opened(browser, runs + "#run=first") as page:
        box = page.locator("#chart-loss .plot").bounding_box()
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + 200, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, middle, steps=4)
        with page.expect_request("**/api/series*first=*"):
            page.mouse.up()
        page.wait_for_selector("#range:not([hidden])")
        assert "steps=" in page.evaluate("location.hash")
        page.get_by_role("button", name="Show the whole run").click()
        page.wait_for_selector("#range", state="hidden")


POINTS = "document.querySelector('#chart-loss path.mean').getAttribute('d').split('L').length"


@pytest.mark.soak
def test_a_late_answer_about_all_steps_does_not_replace_the_range(browser, runs):
    held = []

    def hold(route):
        route.continue_() if "first=" in route.request.url else held.append(route)

    with opened(browser, runs + "#run=first") as page:
        assert page.evaluate(POINTS) == 600
        page.route("**/api/series*", hold)
        page.locator("#chart-loss .plot").focus()
        with page.expect_request("**/api/series*"):
            page.keyboard.press("Escape")
        page.keyboard.press("+")
        while page.evaluate(POINTS) == 600:  # the page lets no stranger wait inside it
            page.wait_for_timeout(50)
        with page.expect_response(lambda answer: "/api/series" in answer.url) as late:
            held.pop().continue_()
        late.value.finished()
        for _ in range(2):  # after a whole turn the page shows what it has by now
            with page.expect_response("**/api/runs"):
                pass
        assert page.evaluate(POINTS) < 600


FOCUSED = """() => {
  const now = document.activeElement;
  return now.closest('figure')?.id || now.id || now.className;
}"""


@pytest.mark.soak
def test_everything_is_reached_and_read_by_keyboard(browser, runs):
    with opened(browser, runs + "#run=first") as page:
        order = []
        for _ in range(12):
            page.keyboard.press("Tab")
            order.append(page.evaluate(FOCUSED))
        assert order[0] == "skip" and {"chip", "log", "theme", "chart-loss", "chart-grad_norm"} <= {
            *order
        }
        page.locator("#chart-loss .plot").focus()
        page.keyboard.press("End")
        assert page.locator("#readout").inner_text().startswith("step 599: training ")
        page.keyboard.press("ArrowLeft")
        assert page.locator("#tip b").inner_text() != "step 599"
        page.keyboard.press("+")
        page.wait_for_selector("#range:not([hidden])")
        page.keyboard.press("Escape")
        page.wait_for_selector("#range", state="hidden")
        page.locator("#theme").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


CONTRAST = r"""() => {
  const curve = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const canvas = document.createElement('canvas').getContext('2d');
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => curve(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const value = (name) => {
    const found = style.getPropertyValue(name).trim();
    const inner = found.match(/var\((.*)\)/);
    return inner ? value(inner[1]) : light(found);
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const found = {};
  for (const ground of ['--back', '--card'])
    for (const name of ['--text', '--soft', '--good', '--warn', '--bad'])
      found[ground + name] = ratio(value(name), value(ground)) / 4.5;
  for (let i = 0; i < 10; i += 1)  // names of lines have their colour
    found['--series-' + i] = ratio(value('--series-' + i), value('--card')) / 4.5;
  return found;
}"""


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_the_dark_and_by_day_on_a_phone(browser, runs, scheme, tmp_path):
    with opened(browser, runs, viewport=PHONE, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        weak = {name: ratio for name, ratio in page.evaluate(CONTRAST).items() if ratio < 1}
        assert weak == {}
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        boxes = [card.bounding_box() for card in page.locator("figure.card:visible").all()]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] for box in boxes)
        page.screenshot(path=tmp_path / f"phone-{scheme}.png", full_page=True)
        assert (tmp_path / f"phone-{scheme}.png").stat().st_size > 50_000


@pytest.mark.soak
def test_a_server_that_went_away_is_told_and_what_was_seen_stays(browser, tmp_path):
    write_run(tmp_path / "run", steps=30)
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    with serving(tmp_path / "run") as address:
        page.goto(address)
        page.wait_for_selector("#chart-loss path.mean")
    page.wait_for_selector("#notice:has-text('does not answer')")
    assert page.locator("#chart-loss path.mean").count() == 2
    context.close()
