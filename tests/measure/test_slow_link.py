"""A slow link that cannot be made, or whose ranks fail, is a line of the table."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from stepladder.bench import compression, measure_compression
from stepladder.errors import WorldError
from stepladder.measure import slow_link as links


def test_without_the_tool_the_row_says_so(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda name: None)
    rows = list(measure_compression("gpt-tiny", batch=1, sequence=8, steps=1))
    assert [row.link for row in rows] == list(compression.LINKS)
    assert all("there is no 'ip' to make one" in row.problem for row in rows)


def test_a_command_that_is_refused_says_why():
    with pytest.raises(WorldError, match="this kernel or user may not make one .*such"):
        links.command("ls", "/no/such/folder")


def allowed() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None


@pytest.mark.soak
@pytest.mark.skipif(not allowed(), reason="network namespaces need root and iproute2")
def test_nothing_is_left_behind_and_a_rank_that_fails_is_told(monkeypatch):
    try:
        with links.SlowLink("1gbit") as cable:
            parcel = compression.CompressionWorkload("no-such-model", 1, 8, 1)
            with pytest.raises(WorldError, match="a rank at its end failed .*no-such-model"):
                compression.run_pair(cable, parcel)
            monkeypatch.setattr(compression, "LIMIT_SECONDS", 0.1)
            with pytest.raises(WorldError, match="two ranks did not finish 1 steps within"):
                compression.run_pair(cable, parcel)
    except WorldError as refused:
        pytest.skip(str(refused))
    assert not any(os.path.exists(f"/run/netns/{name}") for name in cable.names)


STAYS = """
import importlib.util, sys, time
found = importlib.util.spec_from_file_location("slow_link", sys.argv[1])  # without torch
links = importlib.util.module_from_spec(found)
found.loader.exec_module(links)
links.command = lambda *words: print(*words[:3], flush=True)
links.subprocess.run = lambda words, **options: print(*words, flush=True)
with links.SlowLink(None):
    print("laid", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_no_namespace_behind(number):
    words = [sys.executable, "-c", STAYS, links.__file__]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as started:  # fmt: skip
        said = []
        for line in started.stdout:
            said.append(line)
            if line == "laid\n":
                started.send_signal(number)
    assert started.returncode in (128 + number, -number)  # Python ends itself by SIGINT
    removed = [line for line in said if line.startswith("ip netns del")]
    assert len(removed) == 2 and said.index("laid\n") < said.index(removed[0])
