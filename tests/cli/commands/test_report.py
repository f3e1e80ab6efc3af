"""`stepladder report`: one file that needs nothing else, and the plots beside it."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from stepladder.cli.main import main
from stepladder.record import Journal, journal_path
from tests.dashboard.runs import write_run

EMPTY = {"meta", "use", "path", "rect", "line", "br", "img", "link"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("report") / "a <run>", steps=120)
    assert main(["report", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def brief(tmp_path_factory):
    """A run of two steps, which has few plots: each takes a quarter of a second."""
    folder = tmp_path_factory.mktemp("brief")
    with Journal(folder) as journal:
        journal.write("start", plan="bf16 zero3", step=0, environment={"torch": "2.13.0"})
        for step in range(2):
            journal.write("step", step=step, loss=2.5 - step)
        journal.write("summary", steps=2)
    return folder


class Outline(HTMLParser):
    """Which tags stand open, which are never closed, and what is referred to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.refers = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.refers += [
            value for name, value in attributes if name in ("src", "href", "xlink:href")
        ]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)
        self.refers += [
            value for name, value in attributes if name in ("src", "href", "xlink:href")
        ]

    def handle_endtag(self, tag):
        if tag not in EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_reaches_for_nothing(made):
    outline = Outline((made / "report.html").read_text())
    assert outline.open == []
    assert not {"script", "link", "iframe", "img"} & {*outline.seen}
    assert all(word.startswith("#") for word in outline.refers)
    assert outline.seen.count("svg") == 15


def test_it_says_plan_forecast_result_environment_and_what_happened(made):
    text = re.sub(
        r"<style.*?</style>|<svg.*?</svg>", "", (made / "report.html").read_text(), flags=re.S
    )
    for words in (
        "<h1>a &lt;run&gt;</h1>", "bf16 zero3", "because: it fits", "Forecast against measured",
        "620 ms", "-3.2%", "bound by compute", "validation loss", "H100-80GB",
        "holds the others up", "name = &quot;m&quot;",
        "half the micro-batch &lt;b&gt;now&lt;/b&gt;", "went on from step 110",
        "started 2 times",
    ):  # fmt: skip
        assert words in text, words


def test_plots_are_pictures_beside_it(made):
    plots = sorted(made.glob("report/*.png"))
    assert len(plots) == 15 and made / "report" / "memory-by-owner.png" in plots
    assert made / "report" / "logged-val%2F%3Cb%3Eaccuracy.png" in plots
    assert all(plot.read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_options_say_where_to_write_and_json_is_printed(brief, tmp_path, capsys):
    words = ["-o", str(tmp_path / "x" / "r.html"), "--png", str(tmp_path / "p"), "--json"]
    assert main(["report", str(brief), *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["report"] == str(tmp_path / "x" / "r.html") and (tmp_path / "x" / "r.html").exists()
    assert said["plots"] and sorted(said["plots"]) == sorted(
        map(str, (tmp_path / "p").glob("*.png"))
    )
    assert said["plan"] == "bf16 zero3" and said["state"] == "finished"
    assert said["environment"]["torch"] == "2.13.0"


def test_a_run_that_was_cut_short_has_a_report_too(tmp_path, capsys):
    with Journal(tmp_path) as journal:
        journal.write("step", step=0, loss="nan")
    with journal_path(tmp_path).open("ab") as file:
        file.write(b'garbage\n{"kind":"st')
    assert main(["report", str(tmp_path)]) == 0
    assert "1 lines of the journal could not be read" in (tmp_path / "report.html").read_text()
    assert "and 0 plots" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "run folder: {} does not exist."),
        ("foreign", "run folder: {} holds no run: no journal.jsonl in it or one folder below."),
        ("many", "run folder: {} holds 2 runs and is none itself. Name one of them, such as {}/b."),
        ("bad", "run folder: {}/journal.jsonl holds no entry that can be read (2 lines that are "),
        ("empty", "run folder: {}/journal.jsonl holds no entry that can be read (0 lines that "),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_run_is_a_users_mistake(tmp_path, capsys, name, said):
    (tmp_path / "foreign").mkdir()
    for folder, text in (("many/a", "{}"), ("many/b", "{}"), ("bad", "1\nx\n"), ("empty", "")):
        (tmp_path / folder).mkdir(parents=True)
        journal_path(tmp_path / folder).write_text(text)
    assert main(["report", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith(said.replace("{}", str(tmp_path / name)))


def test_a_file_that_cannot_be_written_is_a_users_mistake(brief, tmp_path, capsys):
    assert main(["report", str(brief), "-o", str(tmp_path), "--png", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"output: {tmp_path} cannot be written (Is a directory). "
        "Name another file, such as report.html.\n"
    )


def test_a_report_is_written_without_torch(brief, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from stepladder.cli.main import main\n"
        f"raise SystemExit(main(['report', {str(brief)!r}, '-o', {str(tmp_path / 'r.html')!r}]))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
