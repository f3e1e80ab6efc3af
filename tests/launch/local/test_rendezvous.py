"""Where machines meet: what is asked of the user, and two launchers of this machine that do."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import closing

import pytest

from stepladder.errors import PlanError, WorldError
from stepladder.launch import parse_nodes
from stepladder.launch.local.rendezvous import (
    Nodes,
    hosts_store,
    own_addresses,
    rendezvous,
    route_to,
    unreachable,
)
from tests.ports import free_port


def test_machines_are_a_number_or_a_range_and_an_address():
    assert parse_nodes("2", "host:4000", "x") == Nodes(2, 2, "host", 4000, "x")
    assert parse_nodes("1:4", "10.0.0.1", "x") == Nodes(1, 4, "10.0.0.1", 29400, "x")
    assert parse_nodes("1:2", "[::1]:4000", "x").host == "::1"
    assert Nodes(1, 4).elastic and not Nodes(2, 2).elastic
    assert list(Nodes(1, 3).counts()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("nodes", "where", "said"),
    [
        ("4:2", "h:1", "nodes: at least 4 and at most 2 machines cannot both be. Write"),
        ("0:2", "h:1", "nodes: '0:2' is not a number of machines. Write --nodes 2, or"),
        ("two", "h:1", "nodes: 'two' is not a number of machines."),
        ("1:2:3", "h:1", "nodes: '1:2:3' is not a number of machines."),
        ("2", "h:x", "rendezvous: 'h:x' is not an address where machines meet."),
        ("2", "h:99999", "rendezvous: 'h:99999' is not an address where machines meet."),
        ("2", ":1", "rendezvous: ':1' is not an address where machines meet."),
    ],
)  # fmt: skip
def test_what_is_no_such_thing_is_one_line_with_the_way_out(nodes, where, said):
    with pytest.raises(PlanError) as refused:
        parse_nodes(nodes, where, "x")
    assert str(refused.value).startswith(said)


def test_a_name_nobody_has_and_a_host_nobody_answers_at_are_said():
    with pytest.raises(WorldError, match=r"^rendezvous: no machine is known as 'no\.such\.host'"):
        route_to(parse_nodes("2", "no.such.host:1", "x"))
    assert str(unreachable(Nodes(1, 2, "h", 7, "x"), "refused")) == (
        "rendezvous: nobody answers at h:7 (refused). "
        "Start the command on h too, and see that the port is open."
    )


def test_the_store_is_kept_where_its_address_is_and_nobody_keeps_it_yet():
    assert "127.0.0.1" in own_addresses()
    port = free_port()
    with closing(socket.create_server(("127.0.0.1", port))):
        assert not hosts_store(Nodes(1, 2, "127.0.0.1", port, "x"))
    assert hosts_store(Nodes(1, 2, "127.0.0.1", port, "x"))
    assert not hosts_store(Nodes(1, 2, "192.0.2.1", port, "x"))
    assert route_to(Nodes(1, 2, "127.0.0.1", port, "x")) == (
        "127.0.0.1",
        own_addresses()["127.0.0.1"],
    )


def test_one_machine_meets_nobody():
    handler = rendezvous(Nodes(run_id="x"), "localhost", 60)
    assert handler.next_rendezvous().world_size == 1
    handler.shutdown()


LAUNCH = textwrap.dedent("""
    import sys
    from pathlib import Path
    from stepladder.launch import launch_local, parse_nodes
    from stepladder.launch.local import rendezvous as nodes
    nodes.LAST_CALL_SECONDS, nodes.BEAT_SECONDS = 1, 1  # two processes of one machine are quick
    nodes.BEATS = 15  # but may wait for a processor, and are not to be counted out for that
    meeting = parse_nodes("1:2", sys.argv[1], "meeting")
    folder = Path(sys.argv[2])
    raise SystemExit(
        launch_local([sys.argv[3], str(folder / "seen")], ranks=1, folder=folder, nodes=meeting)
    )
""")
RANK = textwrap.dedent("""
    import os, signal, sys, time
    launcher = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as a rank that saves, and stops
    place = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    open(sys.argv[1], "a").write(place + "\\n")
    while os.getppid() == launcher:  # one whose launcher was killed is not left behind
        time.sleep(0.2)
""")


@pytest.mark.soak
@pytest.mark.timeout(900)  # half a minute alone, several on a crowded machine
def test_a_machine_that_comes_back_is_taken_in_and_one_that_stops_leaves_alone(tmp_path):
    script, seen = tmp_path / "rank.py", tmp_path / "seen"
    script.write_text(RANK)
    port = free_port()
    where = f"127.0.0.1:{port}"

    def start():
        command = [sys.executable, "-c", LAUNCH, where, str(tmp_path), str(script)]
        with (tmp_path / "said").open("ab") as said:  # a pipe that nobody reads would fill up
            return subprocess.Popen(command, stderr=said, env=dict(os.environ))

    def wait_for(*places):
        """The latest ranks to start; one machine may have started alone before the other came."""
        deadline, lines = time.monotonic() + 300, []
        while sorted(lines[-len(places) :]) != sorted(places):
            assert time.monotonic() < deadline, f"{lines}\n{(tmp_path / 'said').read_text()}"
            time.sleep(0.1)
            lines = seen.read_text().splitlines() if seen.exists() else []
        seen.unlink()

    first = start()
    second = None
    try:
        while hosts_store(Nodes(1, 2, "127.0.0.1", port)):  # the first is to keep the store
            assert first.poll() is None
            time.sleep(0.1)
        second = start()
        wait_for("0 of 2", "1 of 2")
        second.kill()
        second.wait()
        second = start()
        wait_for("0 of 2", "1 of 2")
        second.send_signal(signal.SIGTERM)
        assert second.wait(200) == 143
        first.send_signal(signal.SIGTERM)
        assert first.wait(200) == 143
        said = (tmp_path / "said").read_text()
        assert "More machines have come: saving, and starting again with them." in said
        assert "Traceback" not in said
    finally:
        for process in filter(None, (first, second)):
            process.kill()
