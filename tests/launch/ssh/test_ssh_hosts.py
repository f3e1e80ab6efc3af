"""Machines by ssh: asked before anything starts, started, and ended with their connection.

The ssh of these tests is a shell of this machine that runs the line as the other end would;
tests/services does it over real connections between two hosts.
"""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import closing

import pytest

from stepladder.errors import PlanError, WorldError
from stepladder.launch import Request
from stepladder.launch.launchers import OnHosts
from stepladder.launch.ssh.ssh_hosts import Hosts, check_hosts, leashed, parse_hosts, verdict
from tests.launch.stand_in_programs import put
from tests.ports import free_port

SSH = """
for word; do before=$last; last=$word; done
case $before in nowhere) echo "ssh: Could not resolve hostname nowhere" >&2; exit 255 ;; esac
HOST=$before exec sh -c "$last"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    put(tmp_path / "bin", monkeypatch, ssh=SSH)
    return tmp_path


def request_in(tmp_path, body, most=2, **more):
    script = tmp_path / "job.py"
    script.write_text("import os, signal, sys, time\nhost = os.environ['HOST']\n" + body)
    how = {"least": most, "most": most, "python": sys.executable, **more}
    return Request(
        words=(str(script),), rank_words=(), folder=tmp_path / "run", directory=tmp_path, **how
    )


def test_every_machine_is_told_the_same_and_ends_with_its_connection(ssh):
    place = OnHosts(request_in(ssh, ""), parse_hosts("me@a,me@b", "ssh -p 2222", ""))
    first, second = place.text().splitlines()
    assert first.startswith("ssh -p 2222 -o BatchMode=yes ") and " me@a 'cd " in first
    assert second == first.replace("me@a", "me@b", 1)
    assert "--nodes 2 --rendezvous a:29400 </dev/null" in first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,,b", "hosts: 'a,,b' is not a list of machines. Write --hosts a,b,c."),
        ("a,-oProxyCommand=x", "hosts: 'a,-oProxyCommand=x' is not a list of machines."),
        ("a,b,a", "hosts: a is named twice. Name every machine once."),
        ("a,../b", "hosts: 'a,../b' is not a list of machines."),
        ("a,b;c", "hosts: 'a,b;c' is not a list of machines."),
    ],
)
def test_what_is_no_list_of_machines_is_said(text, said):
    with pytest.raises(PlanError) as refused:
        parse_hosts(text, "", "")
    assert str(refused.value).startswith(said)


def test_an_address_and_a_port_by_default_are_taken():
    hosts = parse_hosts("me@10.0.0.1,node-2", "ssh -p 2222", "node-2")
    assert (hosts.meeting, hosts.port, hosts.ssh) == ("node-2", "29400", ("ssh", "-p", "2222"))


def test_all_that_is_wrong_with_the_machines_is_told_before_anything_starts(ssh):
    with closing(socket.create_server(("", 0))) as taken:
        port = taken.getsockname()[1]
        hosts = parse_hosts("a,nowhere", "", f"a:{port}")
        with pytest.raises(PlanError) as refused:
            check_hosts(request_in(ssh, ""), hosts)
    assert str(refused.value).splitlines() == [
        f"rendezvous: port {port} of a is taken. Name another: --rendezvous a:PORT.",
        "hosts: ssh does not reach 'nowhere' (ssh: Could not resolve hostname nowhere). "
        "'ssh nowhere' must work without a password.",
    ]


def test_a_machine_without_folder_python_or_package_is_said(ssh):
    hosts = parse_hosts("a", "", "")
    request = request_in(ssh, "", most=1)
    cases = [
        ({"directory": ssh / "none"}, f"hosts: a has no folder {ssh}/none. Start where"),
        ({"python": "/no/python"}, "python: a has no /no/python. Name it with --python."),
        ({"python": "/bin/false"}, "python: /bin/false of a has no stepladder. Install it there"),
    ]
    for change, said in cases:
        kept = {name: getattr(request, name) for name in request.__slots__}
        with pytest.raises(PlanError) as refused:
            check_hosts(Request(**{**kept, **change}), hosts)
        assert str(refused.value).startswith(said)


def test_without_an_ssh_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    place = OnHosts(request_in(tmp_path, ""), parse_hosts("a", "", ""))
    with pytest.raises(WorldError, match=r"^ssh: there is no 'ssh' on the PATH\. Install an ssh"):
        place.start(print, sys.stdout)


def test_what_they_say_is_shown_and_kept_and_the_worst_code_is_the_runs(ssh, capsys):
    body = "print('hello from', host, flush=True)\nsys.exit(2 if host == 'b' else 0)\n"
    hosts = parse_hosts("a,b", "", f"a:{free_port()}")
    assert OnHosts(request_in(ssh, body), hosts).start(print, sys.stdout) == 2
    assert sorted(capsys.readouterr().out.splitlines()) == ["hello from a", "hello from b"]
    assert (ssh / "run" / "hosts" / "b.out").read_text() == "hello from b\n"
    assert verdict([0, 143, 1]) == 1 and verdict([143, 0]) == 143 and verdict([255, 0]) == 1
    assert verdict([1, 2]) == 2 and verdict([0, 0]) == 0


SAVES = """
def stop(number, frame):
    print(host, "saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print(host, "ready", flush=True)
open("ready", "w").close()
time.sleep(600)
"""


def test_a_launcher_that_is_asked_to_stop_has_every_machine_save_and_end(ssh, capsys):
    outs = [ssh / "run" / "hosts" / f"{host}.out" for host in "ab"]

    def interrupt():
        while not all(out.exists() and "ready" in out.read_text() for out in outs):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    hosts = parse_hosts("a,b", "", f"a:{free_port()}")
    assert OnHosts(request_in(ssh, SAVES), hosts).start(print, sys.stdout) == 130
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["a ready", "a saved", "b ready", "b saved"]


def test_a_machine_that_waits_for_one_that_failed_is_let_go(ssh, capsys):
    late = "    while not os.path.exists('ready'):\n        time.sleep(0.02)\n    sys.exit(7)\n"
    body = f"if host == 'b':\n{late}{SAVES}"
    request = request_in(ssh, body, grace_seconds=-29)  # a second in all
    hosts = parse_hosts("a,b", "", f"a:{free_port()}")
    assert OnHosts(request, hosts).start(print, sys.stdout) == 7
    assert "a saved" in capsys.readouterr().out


@pytest.mark.parametrize(
    "word", ["a;touch x:1", "$(id):1", "a b:1", "`id`:29400", "-oX:1", "a\nb:1"]
)
def test_a_place_to_meet_that_a_shell_would_run_is_refused(word):
    with pytest.raises(PlanError, match="is not an address where machines meet"):
        parse_hosts("a,b", "ssh", word)


def test_every_word_of_a_machines_command_is_quoted(ssh):
    hosts = Hosts(("a", "b"), rendezvous="$(touch x):1")
    line = leashed(request_in(ssh, ""), hosts)
    assert "--rendezvous '$(touch x):1' </dev/null" in line
    assert "--rendezvous '[fe80::1%eth0]:29400'" in leashed(
        request_in(ssh, ""), parse_hosts("a,b", "ssh", "[fe80::1%eth0]:29400")
    )
