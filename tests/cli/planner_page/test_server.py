"""The server's answers over the wire, and whom it does not answer."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

import pytest

from stepladder.cli.planner_page.answers import answer
from stepladder.cli.planner_page.server import HOST, handler_of
from tests.dashboard.web.servers import ask, ask_json


@contextmanager
def planner_page(*words):
    """`stepladder plan --page` on a free port, as a user starts it; the address it printed."""
    command = [sys.executable, "-m", "stepladder.cli.main", "plan", "--page", *words]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        said = server.stdout.readline()
        yield next(word for word in said.split() if word.startswith("http"))
        server.send_signal(signal.SIGINT)
        assert server.wait(120) == 0
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.fixture(scope="module")
def address():
    with ThreadingHTTPServer((HOST, 0), handler_of({"model": "gpt2"})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{HOST}:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_the_pages_files_and_answers_are_served(address):
    status, headers, text = ask(address)
    assert status == 200 and "stepladder planner" in text
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for name in ("page.css", "planner.css", "planner.js", "drawing.js", "icon.svg"):
        assert ask(address, f"/{name}")[0] == 200
    assert ask_json(address, "/api/choices")["start"]["model"] == "gpt2"
    found = ask_json(address, "/api/forecast?model=gpt2&sequence=512&tensor=2")
    assert found == json.loads(
        json.dumps(answer("forecast", {"model": "gpt2", "sequence": "512", "tensor": "2"}))
    )
    empty = ask_json(address, "/api/forecast?sequence=")
    assert empty["problems"][0].startswith("sequence: '' is not a whole number")


def test_nothing_else_is_served(address):
    for path in ("/../pyproject.toml", "/forecast", "/api/plan", "/planner.css/"):
        assert ask(address, path)[0] == 404
    assert ask(address, "/", method="POST")[0] == 501
    assert ask(address, host="evil.example:80")[0] == 421


@pytest.mark.soak
def test_the_command_says_what_to_open_and_ends_quietly():
    with planner_page("gpt2", "--on", "1 H100-80GB") as page:  # which also sees that it ends with 0
        assert ask_json(page, "/api/choices")["start"]["device"] == "H100-80GB"
