"""Our passes over the graphs that torch.compile compiles, and the key of its cache for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from .lookup import find, has

PASS = "torch._inductor.custom_graph_pass.CustomGraphPass"
COMPILER = "torch._dynamo"
COMPILE = "torch._inductor.compile_fx.compile_fx"


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
