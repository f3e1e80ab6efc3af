"""What holds for every test: one thread a process, no network, no luck.

Threads are set by the environment, before torch is imported, so that tests of the ground floors
need not import it and processes that a test starts inherit it.
"""

import gc
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import started_browser
from tests.forked_processes import fork_processes, new_interpreters

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["STEPLADDER_PROBE"] = "off"  # what is measured depends on what else runs
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# A compiler that is asked what the processor can do builds and runs a program for each answer, in
# each process anew; that it can what its flags say is as good here.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
KEPT = tempfile.TemporaryDirectory(prefix="stepladder-tests-")  # what commands keep for their user
os.environ["XDG_DATA_HOME"] = KEPT.name
if Path("/sys/class/net/lo").exists():
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # ranks of a test find each other without a name server

# A shell starts what it puts into the background deaf to Ctrl-C, and so would be every process
# that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

fork_processes()

# Cores are shared and examples are many, so no deadline; the same examples each time, so that a
# failure is a fact about the change and not about the day.
settings.register_profile(
    "stepladder",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("stepladder")


# Python's search for garbage walks all that is loaded, a third of a second each time: a seventh of
# what the tests of this process take. What is imported stays, so it is put out of sight of it.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def light_heap():
    """What earlier files imported and left is out of sight of whoever walks the heap: that takes up
    to a second, and a trial of a plan, a profile or a leak's search does so several times."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def fresh_python():
    """Processes that the test starts are new interpreters, as users start them."""
    with new_interpreters():
        yield


LOCAL = ("127.", "::1", "localhost", "0.0.0.0")


def refuse_strangers(event: str, arguments: tuple) -> None:
    """Fail a test that reaches for another machine: the suite must pass on a plane."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, tuple) and not str(address[0]).startswith(
        (*LOCAL, socket.gethostname())
    ):
        raise OSError(f"a test may not reach {address[0]}")


sys.addaudithook(refuse_strangers)


@pytest.fixture(autouse=True)
def one_choice_of_kernels() -> None:
    """Undo what a matmul in bf16 of an earlier test did: torch turns oneDNN off where it fails."""
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.enabled = True


@pytest.fixture(scope="module")
def browser():
    """A real browser, for tests marked `needs_chromium`."""
    with started_browser() as started:
        yield started
