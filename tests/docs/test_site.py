"""The site builds without a network and without a warning; its links, tables and pictures hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import stepladder
from stepladder import verify
from stepladder.version import VERSION
from tests.browser import PATIENCE_MS, needs_chromium

from .blocks import PAGES, ROOT, page_name, prose
from .site_scripts import load

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; every warning is an error."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(made)],
        capture_output=True, text=True, timeout=220,
        # The theme's word on a mkdocs to come is not about these pages.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return made


class Links(HTMLParser):
    """What a built page loads, where it leads, and where it can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        elif "src" in given:
            self.loads.append(given["src"])


@pytest.mark.soak
def test_the_site_needs_no_network_and_no_link_is_broken(site: Path) -> None:
    pages = {page: Links(page.read_text()) for page in site.rglob("*.html")}
    assert len(pages) == len(list(DOCS.rglob("*.md"))) + 1  # and 404
    broken = []
    for page, links in pages.items():
        broken += [f"{page.name} loads {url}" for url in links.loads if "//" in url]
        for url in [*links.loads, *links.leads]:
            if "//" in url or url.startswith(("mailto:", "data:")) or page.name == "404.html":
                continue
            path, _, anchor = unquote(url).partition("#")
            target = (page.parent / path).resolve() if path else page
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                broken.append(f"{page.name} leads to {url}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{page.name} leads to {url}, which has no such place")
    assert broken == []


SEARCHED = [  # words, and the page that explains them
    ("evaluate", "evaluation.html"),
    ("metric", "evaluation.html"),
    ("EMA", "loop_pieces.html"),
    ("early stopping", "loop_pieces.html"),
    ("DataLoader", "data.html"),
    ("learning rate", "optimizers.html"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("words", "page"), SEARCHED)
def test_a_search_finds_the_guide(site: Path, words: str, page: str) -> None:
    sections = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = [
        section["location"].partition("#")[0]
        for section in sections
        if words.lower() in f"{section['title']} {section['text']}".lower()
    ]
    assert page in found


@pytest.mark.soak
@needs_chromium
def test_a_search_from_the_disk_finds_the_guide(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    for words, guide in SEARCHED:
        page.goto((site / "index.html").as_uri())
        page.fill("input[name=query]", words)
        page.wait_for_selector(f".md-search-result__link[href*='{guide}']")
    page.close()


@pytest.mark.soak
def test_the_home_page_has_a_logo_a_picture_the_version_and_search_without_a_server(
    site: Path,
) -> None:
    home = (site / "index.html").read_text()
    for needed in ("logo.svg", "figures/climb.png", f"stepladder {VERSION}", "iframe-worker.js"):
        assert needed in home
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")


@pytest.mark.soak
def test_the_reference_has_inherited_members(site: Path) -> None:
    reference = (site / "reference.html").read_text()
    for name in ("Run.step", "Run.lr", "Run.micro", "Run.resume"):
        assert f'id="stepladder.train.run.{name}"' in reference


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: (\S+)", (DOCS / "reference.md").read_text(), re.MULTILINE)
    names = {path.rpartition(".")[2] for path in listed}
    proofs = {name for name in verify.__all__ if name in ("parity", "precision", "resume")}
    assert {*stepladder.__all__} - {"verify"} | proofs <= names


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("git@example.org:team/stepladder.git", "https://example.org/team/stepladder"),
        ("ssh://git@example.org/team/stepladder.git", "https://example.org/team/stepladder"),
        ("https://example.org/team/stepladder", "https://example.org/team/stepladder"),
        ("/home/me/stepladder", ""),
        ("", ""),
    ],
)
def test_the_repositorys_link_is_one_that_a_browser_opens(address: str, shown: str) -> None:
    assert load("hooks").web_address(address) == shown


def test_the_contents_are_of_four_kinds() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    kinds = [name for entry in settings["nav"] for name in entry]
    assert kinds == ["Home", "Tutorial", "How-to guides", "Reference", "Explanation"]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_the_sources_lead_somewhere(page: Path) -> None:
    """As they are read in the repository, where no site was built."""
    pictures = load("figures").shown()
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, _ = target.partition("#")
        if "://" in target or not path or path.rpartition("/")[2] in pictures:
            continue
        assert (page.parent / path).exists(), target


def test_every_picture_has_somebody_who_draws_it() -> None:
    figures = load("figures")
    assert figures.shown() <= {*figures.OWN, *figures.forecast_figures()}


def test_a_page_that_compares_plans_shows_the_picture() -> None:
    figures = load("figures")
    for page in (DOCS / "rungs").glob("*.md"):
        assert "figures/" in page.read_text(), page.name
    assert {"rungs.png", "zero.png", "pipeline.png"} <= figures.shown()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_tables_are_what_the_planner_and_the_benchmarks_say(page: Path) -> None:
    text = page.read_text()
    assert load("tables").filled(text) == text, "run: python docs/tables.py"


def test_a_stale_table_is_noticed() -> None:
    page = (DOCS / "rungs" / "zero.md").read_text()
    assert load("tables").filled(page.replace("| yes |", "| maybe |", 1)) == page


def test_every_rung_page_says_what_a_reader_asks() -> None:
    for page in (DOCS / "rungs").glob("*.md"):
        if page.stem == "index":
            continue
        text = page.read_text()
        for part in ("**Idea.**", "**When.**", "**Cost.**", "| word |", "## Try it", "## Measured"):
            assert part in text, f"{page.name} lacks {part}"
        assert "<!-- forecast: " in text and "<!-- measured: " in text, page.name


def test_every_page_stands_in_the_contents() -> None:
    listed = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md"))


def test_the_theme_brings_nothing_from_elsewhere() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False and settings["strict"] is True
