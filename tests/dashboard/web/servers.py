"""The real server in a process of its own, as a user starts it."""

import http.client
import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def serving(*words):
    """`stepladder watch` on a free port; the address it printed."""
    command = [sys.executable, "-m", "stepladder.cli.main", "watch", *map(str, words)]
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


def ask(address, path="/", method="GET", **headers):
    """Status, headers and text of one answer."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port, timeout=120)
    connection.putrequest(method, path, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def ask_json(address, path):
    status, _, text = ask(address, path)
    assert status == 200, text
    return json.loads(text, parse_constant=lambda word: 1 / 0)
