"""Strangers stay outside: by name on loopback, by token elsewhere."""

import pytest

from stepladder.dashboard.web.serve import Address
from stepladder.record import Journal

from .servers import ask, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with Journal(folder) as journal:
        journal.write("step", step=0, loss=1.0)
    return folder


@pytest.fixture(scope="module")
def local(folder):
    with serving(folder) as address:
        yield address


@pytest.fixture(scope="module")
def abroad(folder):
    with serving(folder, "--host", "0.0.0.0") as address:
        yield address


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:80", "LOCALHOST:8686", "[::1]:1", "[::1]"]
)
def test_this_machine_is_let_in_under_its_own_names(local, host):
    assert ask(local, "/api/runs", host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8686", "", "::1", "x:y"],
)
def test_another_name_for_this_machine_is_refused(local, host):
    status, _, text = ask(local, "/api/runs", host=host)
    assert (status, text) == (421, "Unknown host name.")


def test_nobody_comes_in_from_elsewhere_without_the_token(abroad):
    token = abroad.partition("token=")[2]
    assert len(token) >= 32
    for path in (
        "/",
        "/api/runs",
        "/assets/main.js",
        "/?token=",
        f"/?token={token[:-1]}",
        "/?token=%C3%A9",
    ):
        status, _, text = ask(abroad, path)
        assert (status, text) == (401, "Open the address that 'stepladder watch' printed.")
    assert ask(abroad, "/api/runs", cookie="stepladder-token=wrong")[0] == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(abroad):
    token = abroad.partition("token=")[2]
    status, headers, _ = ask(abroad, f"/?token={token}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    name = cookie.partition(";")[0]
    assert ask(abroad, "/api/runs", cookie=name)[0] == 200
    assert ask(abroad, "/api/runs", cookie=name, host="any.example")[0] == 200


@pytest.mark.parametrize(
    ("host", "needed"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("127.8.8.8", False),
     ("0.0.0.0", True), ("::", True), ("10.0.0.7", True), ("node17", True)],
)  # fmt: skip
def test_a_token_is_made_where_others_can_reach(host, needed):
    first, second = Address(host).guarded(), Address(host).guarded()
    assert (first.token is not None) is needed
    assert not needed or first.token != second.token


def test_an_address_can_be_opened_as_it_is_printed():
    assert Address("127.0.0.1").url(8) == "http://127.0.0.1:8/"
    assert Address("::1").url(8) == "http://[::1]:8/"
    assert Address("10.0.0.7", token="t").url(8) == "http://10.0.0.7:8/?token=t"
