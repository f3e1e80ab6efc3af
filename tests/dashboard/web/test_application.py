"""What the server answers about run folders, and what it never does."""

import math
import time

import pytest

from stepladder.record import Journal, journal_path

from .servers import ask, ask_json, serving


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with Journal(folder / "first") as journal:
        journal.write("start", plan="fp32", step=0)
        for step in range(3000):
            journal.write("step", step=step, loss=5.0 - step / 1000, tokens_per_second=10.0)
        journal.write("summary", steps=3000, best=math.nan)
    journal_path(folder / "first").open("a").write('{"kind":"measured","step_seconds":NaN}\n')
    with Journal(folder / "second run & more") as journal:
        journal.write("step", step=0, loss=1.0)
    with serving(folder) as address:
        yield address


def when_read(address, run="first"):
    """Ask for a run until all of it is read."""
    ask_json(address, f"/api/facts?run={run}")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        listing = next(one for one in ask_json(address, "/api/runs") if one["name"] == run)
        if listing.get("step") is not None and listing["read"] == 1:
            return listing
        time.sleep(0.05)
    pytest.fail("the run was never read")


def test_a_page_and_its_files_are_served(address):
    status, headers, text = ask(address)
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert "stepladder" in text
    for name, kind in (("main.js", "javascript"), ("page.css", "css"), ("icon.svg", "svg")):
        assert f"/assets/{name}" in text
        status, headers, _ = ask(address, f"/assets/{name}")
        assert status == 200 and kind in headers["content-type"]


def test_the_page_reaches_for_nothing_on_another_machine(address):
    for name in ("", "assets/main.js", "assets/chart.js", "assets/curves.js", "assets/panels.js",
                 "assets/format.js", "assets/page.css"):  # fmt: skip
        status, headers, text = ask(address, f"/{name}")
        assert status == 200
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("// ", "")


def test_runs_are_listed_and_read_when_they_are_asked_for(address):
    assert {one["name"] for one in ask_json(address, "/api/runs")} == {"first", "second run & more"}
    listing = when_read(address)
    assert (listing["state"], listing["step"]) == ("finished", 2999)
    facts = ask_json(address, "/api/facts?run=second%20run%20%26%20more")
    assert facts["folder"] == "second run & more"


def test_curves_come_in_as_many_points_as_asked_for(address):
    when_read(address)
    whole = ask_json(address, "/api/series?run=first&points=100")["step"]
    assert len(whole["steps"]) == 100 and whole["rows_per_point"] == 30
    assert whole["columns"]["loss"]["high"][0] == 5.0
    part = ask_json(address, "/api/series?run=first&first=10&last=19&points=100")["step"]
    assert part["steps"] == list(range(10, 20))


@pytest.mark.parametrize(
    "words",
    ["points=0", "points=-5", "points=1e9", "points=x", "first=x&last=", f"last={'9' * 99}"],
)
def test_odd_numbers_are_answered_as_if_they_were_not_given(address, words):
    when_read(address)
    assert ask_json(address, f"/api/series?run=first&{words}")["step"]["steps"]


def test_numbers_that_json_has_no_word_for_are_words(address):
    when_read(address)
    assert ask_json(address, "/api/facts?run=first")["summary"]["best"] == "nan"


@pytest.mark.parametrize(
    "path",
    [
        "/api/facts", "/api/facts?run=", "/api/facts?run=../first", "/api/facts?run=/etc",
        "/api/series?run=nobody", "/assets/../application.py", "/assets/..%2fgallery.py",
        "/assets/%2e%2e/facts.py", "/assets//etc/passwd", "/assets/", "/journal.jsonl", "/api",
    ],
)  # fmt: skip
def test_nothing_but_what_is_known_by_name_is_found(address, path):
    assert ask(address, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(address, method):
    status, _, text = ask(address, "/api/runs", method=method)
    assert (status, text) == (405, "This page is only read.")
