"""Two hosts with ssh servers run one job; it ends with the same bits, and with its connection."""

from __future__ import annotations

import os
import signal

import pytest

from .same import STEPS
from .two_hosts import TwoHosts, missing


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if why := missing():
        pytest.skip(why)
    with TwoHosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def test_two_hosts_run_one_job_with_the_same_bits(hosts, place):
    reference = place.reference()
    place.pause(0)
    job = place.launch("ssh", "ssh", *hosts.words, before=hosts.before)
    assert job.wait() == 0, job.said()
    job.assert_same(reference)
    kept = sorted(path.name for path in (job.run.folder / "ranks").glob("*.out"))
    assert kept == ["rank-0.out", "rank-1.out"]
    second = job.run.folder / "hosts" / f"{hosts.cable.addresses[1]}.out"
    assert second.exists() and "loss" in job.said()


def test_a_launcher_that_is_killed_leaves_no_host_running_and_nothing_is_lost(hosts, place):
    place.pause(0.2)
    job = place.launch("ssh", "ssh-killed", *hosts.words, before=hosts.before)
    job.trains(6)
    os.kill(job.process.pid, signal.SIGKILL)
    job.process.wait()
    run = job.run
    job.until_ended(lambda: bool(run.entries("summary")))
    saved = run.committed()
    assert saved == run.entries("summary")[-1]["steps"] and 6 <= saved < STEPS
    place.pause(0)
    again = place.launch(
        "ssh", "ssh-killed", *hosts.words, "--run.resume", "true", before=hosts.before
    )
    assert again.wait() == 0, again.said()
    again.assert_same(place.reference())


def test_a_host_that_is_not_there_is_one_line(hosts, place):
    words = ["--hosts", f"{hosts.cable.addresses[0]},10.213.77.9", "--ssh", hosts.ssh]
    job = place.launch("ssh", "ssh-none", *words, before=hosts.before)
    assert job.wait() == 2
    (line,) = job.said().splitlines()
    assert line.startswith("hosts: ssh does not reach '10.213.77.9' (")
