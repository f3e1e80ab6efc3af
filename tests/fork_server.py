"""The server of `tests.forked_processes`: imports torch once, and forks for each request.

A request is answered by the fork of a fork, whose parent ends at once: as an orphan it becomes a
child of the process that asked. A fork that may start ranks has a server of its own for them.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from stepladder.cli.import_torch import loading
from tests.forked_processes import CLIENT, Server, fork_processes, is_worker, receive

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
PATH: list[str] = []  # of a server: where modules are found, besides what each program adds


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
    elif words[0] == "-c":
        sys.argv, sys.path[:] = ["-c", *words[2:]], ["", *path]
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
    if words[1] == "-c":
        exec(compile(words[2], "<string>", "exec"), main.__dict__)
        return
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
    PATH[:] = sys.path[1:]
    with loading():
        for name in PRELOADED:
            importlib.import_module(name)
        with suppress(ImportError):
            for name in FOREIGN:
                importlib.import_module(name)
    run_asked(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
