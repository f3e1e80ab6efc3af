"""The planner's page in a real browser; without one these tests are skipped."""

import json
import shlex
from contextlib import contextmanager

import pytest

from stepladder.cli.main import main
from tests.browser import PATIENCE_MS, needs_chromium, serious_findings

from .test_server import planner_page

pytestmark = [needs_chromium, pytest.mark.soak]
DESKTOP, PHONE = {"width": 1400, "height": 900}, {"width": 420, "height": 880}


@pytest.fixture(scope="module")
def address():
    with planner_page("llama3-8b", "--on", "8 x H100-80GB", "--batch", "64") as found:
        yield found


@contextmanager
def opened(browser, address, viewport=DESKTOP, scheme="light", lax=False):
    """The page with a forecast drawn; whatever the console complains of fails the test.

    Where `lax`, a test may run scripts of its own in it.
    """
    context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=lax)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints = []
    page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address)
    page.wait_for_selector("body[data-drawn]")
    yield page
    context.close()
    assert complaints == []


@contextmanager
def redrawn(page):
    """What the block changes is drawn when it has ended."""
    before = page.evaluate("document.body.dataset.drawn")
    yield
    page.wait_for_function("before => document.body.dataset.drawn !== before", arg=before)


def shown_forecast(page, capsys):
    """What the command that the page shows prints."""
    command = page.locator(".command pre").first.inner_text()
    main([*shlex.split(command)[1:], "--json"])
    return json.loads(capsys.readouterr().out)


def widths(page, part):
    found = page.locator(f"#{part} .track i").all()
    return {
        one.get_attribute("data-part"): one.bounding_box()["width"]
        for one in found
        if one.is_visible()
    }


def test_a_slider_redraws_memory_time_and_the_command(browser, address, capsys):
    with opened(browser, address) as page:
        before = widths(page, "memory")
        page.get_by_label("Tensor, slider").focus()
        with redrawn(page):
            page.keyboard.press("ArrowRight")
        assert "tensor=2" in page.locator(".command pre").first.inner_text()
        after, said = widths(page, "memory"), shown_forecast(page, capsys)
        assert before != after
        drawn, peak = sum(after.values()), said["memory"]["peak_bytes"]
        for owner, width in after.items():
            assert width / drawn == pytest.approx(said["memory"][owner] / peak, abs=0.01)
        causes = widths(page, "time")
        for cause, width in causes.items():
            share = said["time"][cause] / said["time"]["step_seconds"]
            assert width / sum(causes.values()) == pytest.approx(share, abs=0.01)


COLOURS = """() => ['memory', 'time'].map((id) =>
  [...document.querySelectorAll(`#${id} .track i:not([hidden])`)]
  .map((one) => getComputedStyle(one).backgroundColor))"""


def test_each_owner_and_each_cause_has_a_colour_of_its_own(browser, address):
    with opened(browser, address) as page:
        for colours in page.evaluate(COLOURS):
            assert "rgba(0, 0, 0, 0)" not in colours
            assert len(set(colours)) == len(colours) > 2


def test_it_says_whether_it_fits_and_what_is_wrong(browser, address, capsys):
    with opened(browser, address) as page:
        assert page.locator("#verdict b").inner_text() == "fits"
        assert page.locator("#remedies").is_hidden()
        with redrawn(page):
            page.get_by_label("Model", exact=True).select_option("llama3-70b")
        with redrawn(page):
            page.get_by_label("Data parallel").select_option("ddp")
        assert page.locator("#verdict b").inner_text() == "does not fit"
        assert page.locator(".command").count() == 1, "no command trains what does not fit"
        assert "can be used. Largest owner" in page.locator("#notes").inner_text()
        rows = page.locator("#remedies tr").all_inner_texts()
        expected = [one["change"] for one in shown_forecast(page, capsys)["remedies"]]
        assert [row.split("\t")[0] for row in rows[1:]] == expected
        with redrawn(page):
            page.get_by_label("Tensor", exact=True).fill("3")
        lines = page.locator("#problems p").all_inner_texts()
        assert "layout.tensor: 3 ways cannot cut 64 attention heads evenly" in " ".join(lines)
        with redrawn(page):
            page.get_by_label("Tensor", exact=True).fill("2")
        assert page.locator("#problems").is_hidden()


def test_the_fastest_plan_fills_the_fields(browser, address, capsys):
    with opened(browser, address) as page:
        with redrawn(page):
            page.get_by_role("button", name="Find the fastest plan that fits").click()
        found = shown_forecast(page, capsys)
        main(["plan", "llama3-8b", "--on", "8 x H100-80GB", "--batch", "64", "--json"])
        assert found["plan"] == json.loads(capsys.readouterr().out)["ranked"][0]["plan"]


def test_numbers_of_ones_own_begin_with_those_of_the_model(browser, address):
    with opened(browser, address) as page:
        assert page.get_by_label("Layers", exact=True).is_hidden()
        with redrawn(page):
            page.get_by_label("Model", exact=True).select_option("own")
        with redrawn(page):
            page.get_by_label("Layers", exact=True).fill("16")
        assert "llama:layers=16,hidden=4096" in page.locator(".command pre").first.inner_text()


def test_an_address_holds_the_fields(browser, address):
    with opened(browser, f"{address}#model=gpt2&sequence=1024&precision=fp32") as page:
        command = page.locator(".command pre").first.inner_text()
        assert "plan gpt2" in command and "'fp32 zero3" in command


NAMELESS = """() => [...document.querySelectorAll('input, select, button')]
  .filter((one) => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
  .map((one) => one.outerHTML)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_by_day_and_night_and_all_is_reached_by_keyboard(browser, address, scheme):
    with opened(browser, address, PHONE, scheme) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert page.evaluate(NAMELESS) == []
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        shown = {one.get_attribute("id") for one in page.locator("input[id]:visible").all()}
        assert shown | {"field-model", "fastest", "theme"} <= reached


def test_a_forecast_whose_upper_end_passes_the_limit_says_so(browser, address):
    tight = "#model=llama3-8b&data=zero3&recompute=none&compile=off"
    with opened(browser, address + tight) as page:
        assert page.locator("#verdict b").inner_text() == "fits, and may run out"
        assert "passes the limit of 78.8 GiB" in page.locator("#notes").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_has_no_serious_finding_on_the_planner(browser, address, view, scheme):
    with opened(browser, f"{address}#model=llama3-70b&data=ddp", view, scheme, lax=True) as page:
        assert page.locator("#remedies").is_visible()
        assert serious_findings(page) == []
