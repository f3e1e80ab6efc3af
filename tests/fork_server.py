"""Python processes of the tests, forked from servers that have imported torch already.

An import of torch and of the commands takes four seconds of a processor, and the gate starts some
two hundred processes that need it. While `forked_processes` is in force, a process that would run
a stepladder command, a script or a rank's worker in a new interpreter is forked from a server
instead: with its own arguments, folder, environment, descriptors and session, and as a child of the
process that started it, so that signals, exit codes and the death of a parent are the real ones.

What would tell such a process from a new interpreter is left to a real one: another environment of
Python, torch or a compiler, options, code given by `-c`, `preexec_fn`. Ranks come from two servers
in turn, because each interpreter hashes strings differently: an order of ranks that is taken from a
set must fail here, too. A fork ends as Python does up to its exit functions, and frees nothing
after them: a test of how an interpreter is taken apart starts a real one (`-c`, `fresh_python`).
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import importlib.util
import io
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORKER = "on_ranks/worker.py"
MODULES = ("stepladder.cli.main", "stepladder.cli.rank", "torch.distributed.run")
# Read when Python starts or a library is imported, so another value needs another interpreter.
READ_AT_START = (
    "PYTHON", "LD_", "OMP_", "MKL_", "TORCH_LOGS", "TORCHDYNAMO", "TORCHINDUCTOR", "TRITON", "CUDA",
    "HF_",
)  # fmt: skip
PRELOADED = (
    "stepladder.train",
    "stepladder.job",
    "stepladder.cli.commands.train",
    "stepladder.cli.rank",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.distributed.run",
)
FOREIGN = (  # where they are installed
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
SERVERS = 2
PATH: list[str] = []  # of a server: where modules are found, besides what each program adds
SET_CHILD_SUBREAPER = 36  # prctl's number
execute_child: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined]


class Server:
    """A process that has imported torch and forks when it is asked to."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen | None = None) -> None:
        self.socket, self.process = connection, process

    @classmethod
    def new(cls, environment: dict[str, str]) -> Server:
        ours, theirs = socket.socketpair()
        with theirs, new_interpreters():
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
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


def can_fork(args: Any, preexec_fn: Any, environment: dict[str, str]) -> bool:
    if CLIENT.paused or CLIENT.owner != os.getpid() or preexec_fn or isinstance(args, (str, bytes)):
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
    return len(words) > 1 and words[1].endswith(".py") and words[1] != __file__


def without_option(args: Any) -> list[str]:
    """The words of a command, less the `-u` (write at once) of torchrun's ranks."""
    words = [os.fspath(word) for word in args]
    return words[:1] + words[2:] if words[1:2] == ["-u"] else words


def is_worker(words: list[str]) -> bool:
    return words[1] == "-P" and words[2].endswith(WORKER)


def fork_or_execute(
    self: Any, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
    cwd: Any, env: Any, startupinfo: Any, creationflags: Any, shell: Any,
    p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
    restore_signals: Any, gid: Any, gids: Any, uid: Any, umask: Any,
    start_new_session: bool, process_group: Any,
) -> None:  # fmt: skip
    """What `Popen` does to start its process, by a fork of a server where that is the same."""
    environment = {os.fsdecode(k): os.fsdecode(v) for k, v in (env or os.environ).items()}
    plain = not shell and executable in (None, sys.executable) and gid is gids is uid is None
    if not (plain and umask < 0 and process_group < 0 and can_fork(args, preexec_fn, environment)):
        return execute_child(
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
            creationflags, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite,
            restore_signals, gid, gids, uid, umask, start_new_session, process_group,
        )  # fmt: skip
    standard = [p2cread, c2pwrite, errwrite]
    given = {number: end if end >= 0 else number for number, end in enumerate(standard)}
    given |= {number: number for number in pass_fds}
    request = {
        "words": without_option(args),
        "unbuffered": "-u" in args[1:2] or bool(environment.get("PYTHONUNBUFFERED")),
        "folder": os.fspath(cwd) if cwd else os.getcwd(),
        "environment": environment,
        "session": start_new_session,
        "parent": os.getpid(),
        "descriptors": list(given),
    }
    with CLIENT.lock:
        self.pid = CLIENT.server(environment).start(request, list(given.values()))
    self._child_created = True
    self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


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


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until nobody asks; in a fork, the request that it is for."""
    while True:
        header, descriptors, *_ = socket.recv_fds(connection, 8, 64)
        if not header:
            return None
        size = int.from_bytes(header + receive(connection, 8 - len(header)), "big")
        request = pickle.loads(receive(connection, size))
        read, write = os.pipe()
        if between := os.fork():
            os.close(write)
            for number in descriptors:
                os.close(number)
            os.waitpid(between, 0)  # the fork of the fork is an orphan now, and so adopted
            connection.sendall(os.read(read, 8))
            os.close(read)
        else:
            if child := os.fork():
                os.write(write, child.to_bytes(8, "big"))
                os._exit(0)
            connection.close()
            os.close(read)
            os.close(write)
            place_descriptors(dict(zip(request["descriptors"], descriptors)))
            return request


def serve_own_ranks() -> bool:
    """Fork a server for the ranks that this process will start; True in what it forks for them."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        CLIENT.owner, CLIENT.environment = os.getpid(), dict(os.environ)
        CLIENT.servers, CLIENT.count = [Server(ours)], 1
        fork_processes()
        return False
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    place_descriptors({0: nothing, 1: nothing, 2: nothing, theirs.fileno(): theirs.fileno()})
    run_asked(theirs)
    return True


def place_descriptors(given: dict[int, int]) -> None:
    """Give each descriptor the number that it had in the process that sent it."""
    high = {number: os.dup(end) if end in given else end for number, end in given.items()}
    while clash := set(high.values()) & set(given):
        high = {number: os.dup(end) if end in clash else end for number, end in high.items()}
    for number, end in high.items():
        os.dup2(end, number)
    keep = sorted(given)
    for low, next_one in zip(keep, [*keep[1:], 4096]):
        os.closerange(low + 1, next_one)


def become(request: dict[str, Any], path: list[str]) -> None:
    """Set all that a new interpreter would find."""
    while os.getppid() != request["parent"]:
        time.sleep(0.001)
    if request["session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = writer(1, request["unbuffered"])
    sys.stderr = sys.__stderr__ = writer(2, request["unbuffered"])
    _, *words = request["words"]
    if words[0] == "-P":
        sys.argv, sys.path[:] = words[1:], path
    elif words[0] == "-m":
        sys.argv, sys.path[:] = words[1:], [request["folder"], *path]
    else:
        sys.argv, sys.path[:] = words, [str(Path(words[0]).resolve().parent), *path]


def writer(number: int, unbuffered: bool) -> io.TextIOWrapper:
    file = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    errors = "strict" if number == 1 else "backslashreplace"
    lines = number == 2 or os.isatty(number)
    return io.TextIOWrapper(file, "utf-8", errors, line_buffering=lines, write_through=unbuffered)


def run(words: list[str]) -> None:
    """Run a module or a file as Python does: as `__main__`, which stays to the end."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[1] == "-m":
        spec = importlib.util.find_spec(words[2])
        assert spec and spec.loader and spec.origin
        code = spec.loader.get_code(words[2])  # type: ignore[attr-defined]
        sys.argv[0] = spec.origin
        main.__spec__, main.__package__ = spec, spec.parent
    else:
        code = compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec")
    main.__file__ = sys.argv[0]
    exec(code, main.__dict__)


def code_of(program: Callable[[], None]) -> int:
    """Run it; the exit code that Python gives to how it ended, and its last words on stderr."""
    try:
        program()
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return asked.code or 0
        print(asked.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> None:
    """End as Python does, but leave it to the system to free what is loaded: that takes longer."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def run_asked(connection: socket.socket) -> None:
    """Serve to the end; in a fork, run the program that was asked for."""
    with closing(connection):
        request = serve(connection)
    if request is None:
        os._exit(0)  # nothing of it need be taken apart
    become(request, PATH)
    launches = "RANK" not in os.environ and not is_worker(request["words"])
    if not (launches and serve_own_ranks()):
        end(code_of(lambda: run(request["words"])))


def main() -> None:
    """The server; in a fork of it, the program that was asked for, to its end."""
    path = sys.path[1:]
    sys.path[:] = path
    from stepladder.cli.import_torch import loading

    with loading():
        for name in PRELOADED:
            importlib.import_module(name)
        with suppress(ImportError):
            for name in FOREIGN:
                importlib.import_module(name)
    PATH[:] = path
    run_asked(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
