"""Our passes over the graphs that torch.compile compiles, the key of its cache for them, and how
many graphs it compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import fx

from .lookup import find, has

PASS = "torch._inductor.custom_graph_pass.CustomGraphPass"
COMPILER = "torch._dynamo"
COMPILE = "torch._inductor.compile_fx.compile_fx"
CALLBACKS = "torch._dynamo.callback.callback_handler"
TRACED = "DYNAMO"  # of the things it tells of: a graph, and not what belongs to one


class GraphPass:
    """What the compiler calls with a graph; compiled code is cached under `uuid`.

    The compiler caches code made by instances of its own class alone, an abstract one, so this
    class is registered as one of its kind when the first pass is made.
    """

    def __init__(self) -> None:
        if has(PASS):
            find(PASS).register(GraphPass)

    def __call__(self, graph: fx.Graph) -> None:
        raise NotImplementedError

    def uuid(self) -> Any:
        raise NotImplementedError


def takes_passes() -> bool:
    """Whether this torch's compiler takes passes as we know it to."""
    return has(PASS)


def import_compiler() -> None:
    """Import the compiler now, in one process, rather than on every rank that is forked from it."""
    has(COMPILER)


def compile_graph(traced: fx.GraphModule, examples: list[Any], options: Any) -> Callable[..., Any]:
    """What torch.compile makes of one graph, for who must stand between its guards and it."""
    made: Callable[..., Any] = find(COMPILE)(traced, examples, config_patches=options)
    return made


@dataclass(slots=True)
class Compilations:
    """Graphs compiled so far in this process, and the seconds that they and their parts took."""

    graphs: int = 0
    seconds: float = 0.0
    began: float = 0.0  # the one under way

    def start(self, what: Any) -> None:
        self.began = time.perf_counter()
        self.graphs += what.callback_trigger.name == TRACED

    def end(self, what: Any) -> None:
        self.seconds += time.perf_counter() - self.began

    def listen(self) -> None:
        """Have torch tell of what it compiles from now on: torch.compiler.reset() ends that."""
        handler = find(CALLBACKS) if has(CALLBACKS) else None
        if handler is not None and self.start not in handler.start_callbacks:
            handler.register_start_callback(self.start)
            handler.register_end_callback(self.end)


@cache
def watch_compilations() -> Compilations:
    """The count, which goes on while it listens; it stays at 0 where torch tells nobody."""
    return Compilations()
