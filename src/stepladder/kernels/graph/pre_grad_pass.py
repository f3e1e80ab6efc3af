"""All that is ours in the graph of a module's own calls, for the one place the compiler has."""

from __future__ import annotations

from typing import Any

from torch import fx

from stepladder.seam.inductor import GraphPass

from .gelu_pass import GeluPass
from .max_pool_pass import MaxPoolPass


class PreGradPass(GraphPass):
    """Run by the compiler before it differentiates.

    Args:
        selective: blocks keep what their products gave and make the rest again. A linear that ends
            in GELU would be made again whole, product and all, so it stays two.
    """

    def __init__(self, *, selective: bool = False) -> None:
        super().__init__()
        self.passes = (MaxPoolPass(),) if selective else (GeluPass(), MaxPoolPass())

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> Any:
        """For the compiler's cache: what this pass does is what those do."""
        return tuple(each.uuid() for each in self.passes)
