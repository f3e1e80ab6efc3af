"""All that is ours in the graph of a module's own calls, for the one place the compiler has."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .gelu_pass import GeluPass
from .pool_pass import PoolPass


class ModulePass(CustomGraphPass):
    """Run by the compiler before it differentiates."""

    passes = GeluPass(), PoolPass()

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> Any:
        """For the compiler's cache: what this pass does is what those do."""
        return tuple(each.uuid() for each in self.passes)
