"""The wheel holds everything and says what it is; installed beside nothing else of it, it works."""

from __future__ import annotations

import email
import http.client
import json
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stepladder.version import VERSION

from .conftest import ENVIRON, ROOT, SOURCES, done

pytestmark = pytest.mark.soak

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TINY = [
    "--model.name", "gpt:layers=1,hidden=16,heads=2,vocab=256", "--model.sequence", "16",
    "--train.batch", "4", "--train.report_every", "1", "--train.evaluate_batches", "1",
    "--train.sample", "0", "--train.device", "cpu", "--data.source", "text:text",
]  # fmt: skip


def files_of(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_no_other(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {f"stepladder/{name}" for name in files_of(ROOT / "src" / "stepladder")}
    pages = ("dashboard/page/index.html", "cli/planner_page/page/index.html")
    for needed in ("py.typed", *pages, "labs/lessons/many_devices/ring.py"):
        assert f"stepladder/{needed}" in names


def test_the_sdist_holds_what_a_wheel_is_made_of(built):
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    source = {f"src/stepladder/{name}" for name in files_of(ROOT / "src" / "stepladder")}
    assert {*SOURCES, *source} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]


def test_it_says_what_it_is(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        read = {name.partition("/")[2]: name for name in wheel.namelist() if "dist-info" in name}
        told = email.message_from_bytes(wheel.read(read["METADATA"]))
        entry = wheel.read(read["entry_points.txt"]).decode()
    assert (told["Name"], told["Version"]) == ("stepladder", VERSION)
    assert told["License-Expression"] == "Apache-2.0" and "licenses/LICENSE" in read
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload().startswith("# stepladder")
    assert "Typing :: Typed" in told.get_all("Classifier")
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert "stepladder = stepladder.cli.main:main" in entry


def test_what_it_needs_is_there_and_agrees(installed):
    pip = [sys.executable, "-m", "pip", "--python", installed.python]
    assert "No broken requirements" in done(*pip, "--disable-pip-version-check", "check")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder, with some text to train on, far from the sources."""
    made = tmp_path_factory.mktemp("user")
    (made / "text").mkdir()
    (made / "text" / "words.txt").write_text("every rung leaves the mathematics alone. " * 200)
    return made


SMOKE = """\
import io, json, sys
from contextlib import redirect_stdout
from pathlib import Path
import stepladder
from stepladder.cli.main import main

def ask(*words):
    said = io.StringIO()
    with redirect_stdout(said):
        code = main([*words, "--json"])
    assert code == 0, (words, code, said.getvalue())
    return json.loads(said.getvalue())

home, *tiny = json.loads(sys.argv[1])
assert Path(stepladder.__file__).is_relative_to(home), stepladder.__file__
ask("doctor", "--quick")
plans = ask("plan", "llama3-8b", "--on", "8 x H100-80GB", "--batch", "64")
labs = [lab["name"] for course in ask("lab")["courses"] for lab in course["labs"]]
first = ask("train", *tiny, "--train.steps", "3", "--run.folder", "run")
again = ["--train.steps", "5", "--run.folder", "run", "--run.resume", "true"]
print(json.dumps({"labs": labs, "steps": [first["steps"], ask("train", *tiny, *again)["steps"]]}))
"""


def test_doctor_plan_labs_training_and_resuming_work_from_the_wheel(installed, folder):
    words = json.dumps([str(installed.packages), *TINY])
    found = json.loads(done(installed.python, "-c", SMOKE, words, cwd=folder).splitlines()[-1])
    assert found["steps"] == [3, 5] and "ring" in found["labs"]
    assert (folder / "run" / "step-000005").is_dir()


def test_the_command_and_its_page_answer_from_the_wheel(installed, folder):
    assert done(installed.command, "--version", cwd=folder) == f"{VERSION}\n"
    run = folder / "watched"
    run.mkdir()
    (run / "journal.jsonl").write_text('{"kind":"step","time":1.0,"step":0,"loss":1.5}\n')
    server = subprocess.Popen(
        [installed.command, "watch", run, "--port", "0"],
        stdout=subprocess.PIPE, text=True, env=ENVIRON,
    )  # fmt: skip
    try:
        said = server.stdout.readline().split()
        port = urlsplit(next(word for word in said if word.startswith("http"))).port
        for path in ("/", "/assets/main.js", "/assets/page.css", "/api/runs"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request("GET", path)
            assert connection.getresponse().status == 200, path
            connection.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


CONSUMER = """\
import stepladder as sl

plan = sl.Plan.parse("bf16 zero3 shard=8")
reveal_type(plan)
reveal_type(sl.on_ranks(sl.Plan.parse, 2, "bf16"))
reveal_type(sl.Cluster.parse("8 x H100-80GB").device.name)
sl.Plan.parse(3)
"""


def test_a_consumers_types_are_checked_against_the_wheel(installed, tmp_path):
    (tmp_path / "consumer.py").write_text(CONSUMER)
    # What is asked about is ours: other packages' types are not read, which would take a minute.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nignore_missing_imports = true\n"
        "[mypy-torch.*,numpy.*,matplotlib.*]\nfollow_imports = skip\n"
    )
    checker = [sys.executable, "-m", "mypy", "--python-executable", str(installed.python)]
    asked = subprocess.run(
        [*checker, "consumer.py"], cwd=tmp_path, capture_output=True, text=True, env=ENVIRON
    )
    said = asked.stdout.splitlines()
    assert said[:3] == [
        'consumer.py:4: note: Revealed type is "stepladder.plan.plan.Plan"',
        'consumer.py:5: note: Revealed type is "list[stepladder.plan.plan.Plan]"',
        'consumer.py:6: note: Revealed type is "str"',
    ], asked.stdout + asked.stderr
    assert said[3].startswith('consumer.py:7: error: Argument 1 to "parse" of "Plan" has')
    assert said[4].startswith("Found 1 error in 1 file")
