"""Python processes of the tests, forked from servers that have imported torch already.

An import of torch and of the commands takes four seconds of a processor, and the gate starts some
two hundred processes that need it. After `fork_processes`, a process that would run a stepladder
command, a script or a rank's worker in a new interpreter is forked from a server instead: with its
own arguments, folder, environment, descriptors and session, and as a child of the process that
started it, so that signals, exit codes and the death of a parent are the real ones.

What would tell such a process from a new interpreter is left to a real one: other variables that
Python, torch or a compiler reads at its start, options, a test's code given by `-c`, `preexec_fn`.
Ranks come from two servers in turn, because each interpreter hashes strings differently: an order
of ranks that is taken from a set must fail here, too. A fork ends as Python does up to its exit
functions, and frees nothing after them: a test of how an interpreter is taken apart starts a real
one (`-c`, or the fixture `fresh_python`).
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORKER = "on_ranks/worker.py"
MODULES = ("stepladder.cli.main", "stepladder.cli.rank", "torch.distributed.run")
CHECKED = "from stepladder.world.machine.check_programs import main"  # what `-c` runs of ours
# Read when Python starts or a library is imported, so another value needs another interpreter.
READ_AT_START = (
    "PYTHON", "LD_", "OMP_", "MKL_", "TORCH_LOGS", "TORCHDYNAMO", "TORCHINDUCTOR", "TRITON", "CUDA",
    "HF_",
)  # fmt: skip
SERVERS = 2
SET_CHILD_SUBREAPER = 36  # prctl's number
execute_child: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Server:
    """A process that has imported torch and forks when it is asked to."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen | None = None) -> None:
        self.socket, self.process = connection, process

    @classmethod
    def new(cls, environment: dict[str, str]) -> Server:
        ours, theirs = socket.socketpair()
        with theirs, new_interpreters():
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip
        return cls(ours, process)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """The id of a new child of this process."""
        message = pickle.dumps(request)
        adopt_orphans(True)
        try:
            socket.send_fds(self.socket, [len(message).to_bytes(8, "big")], descriptors)
            self.socket.sendall(message)
            return int.from_bytes(receive(self.socket, 8), "big")
        finally:
            adopt_orphans(False)

    def stop(self) -> None:
        self.socket.close()
        if self.process:
            self.process.wait()


class Client:
    """The servers of this process, started when first needed, and whether they are to be used."""

    def __init__(self) -> None:
        self.servers: list[Server] = []
        self.owner, self.environment = os.getpid(), dict(os.environ)
        self.turn, self.lock = itertools.count(), threading.Lock()
        self.paused, self.count = 0, SERVERS

    def server(self, environment: dict[str, str]) -> Server:
        place = environment.get("RANK", "")
        turn = int(place) if place.isdigit() else next(self.turn)
        while len(self.servers) < self.count:
            self.servers.append(Server.new(self.environment))
        return self.servers[turn % self.count]

    def stop(self) -> None:
        if self.owner == os.getpid():
            for server in self.servers:
                server.stop()


CLIENT = Client()


def fork_processes() -> None:
    """From here on, what can be forked is; on Linux, where a process can adopt another."""
    if sys.platform == "linux":
        CLIENT.environment = dict(os.environ)
        subprocess.Popen._execute_child = fork_or_execute  # type: ignore[attr-defined]
        atexit.register(CLIENT.stop)


@contextmanager
def new_interpreters() -> Iterator[None]:
    """Block in which every process is a new interpreter, as users start it."""
    CLIENT.paused += 1
    try:
        yield
    finally:
        CLIENT.paused -= 1


def read_at_start(environment: Any) -> dict[str, str]:
    """The variables that must not differ; torch sets where its compiler's cache is by itself."""
    return {
        name: text
        for name, text in environment.items()
        if name.startswith(READ_AT_START) and not name.endswith("CACHE_DIR")
    }


def can_fork(args: Any, environment: dict[str, str]) -> bool:
    if CLIENT.paused or CLIENT.owner != os.getpid() or isinstance(args, (str, bytes)):
        return False
    words = without_option(args)
    if (
        not words
        or words[0] != sys.executable
        or read_at_start(environment) != read_at_start(CLIENT.environment)
    ):
        return False
    if words[1:2] == ["-P"]:
        return is_worker(words)
    if words[1:2] == ["-m"]:
        return words[2] in MODULES
    if words[1:2] == ["-c"]:
        return CHECKED in words[2]
    return len(words) > 1 and words[1].endswith(".py")


def without_option(args: Any) -> list[str]:
    """The words of a command, less the `-u` (write at once) of torchrun's ranks."""
    words = [os.fspath(word) for word in args]
    return words[:1] + words[2:] if words[1:2] == ["-u"] else words


def is_worker(words: list[str]) -> bool:
    return words[1] == "-P" and words[2].endswith(WORKER)


def fork_or_execute(process: Any, *given: Any) -> None:
    """What `Popen` does to start its process, by a fork of a server where that is the same."""
    asked = inspect.signature(execute_child).bind(process, *given).arguments
    variables = asked["env"] or os.environ
    environment = {os.fsdecode(name): os.fsdecode(text) for name, text in variables.items()}
    plain = not asked["shell"] and asked["executable"] in (None, sys.executable)
    plain = plain and all(asked[name] is None for name in ("preexec_fn", "gid", "gids", "uid"))
    plain = plain and asked["umask"] < 0 and asked.get("process_group", -1) < 0
    if not (plain and can_fork(asked["args"], environment)):
        return execute_child(process, *given)
    ends = enumerate(asked[name] for name in ("p2cread", "c2pwrite", "errwrite"))
    descriptors = {number: end if end >= 0 else number for number, end in ends}
    descriptors |= {number: number for number in asked["pass_fds"]}
    request = {
        "words": without_option(asked["args"]),
        "unbuffered": "-u" in asked["args"][1:2] or bool(environment.get("PYTHONUNBUFFERED")),
        "folder": os.fspath(asked["cwd"]) if asked["cwd"] else os.getcwd(),
        "environment": environment,
        "session": asked["start_new_session"],
        "parent": os.getpid(),
        "descriptors": list(descriptors),
    }
    with CLIENT.lock:
        server = CLIENT.server(environment)
        process.pid = server.start(request, list(descriptors.values()))
    process._child_created = True
    process._close_pipe_fds(*(asked[name] for name in PIPES))


def adopt_orphans(on: bool) -> None:
    """Whether a process whose parent ends becomes a child of this one."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def receive(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
