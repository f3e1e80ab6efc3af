"""Our passes before autograd, bundled because Inductor takes one pre-grad pass."""

from __future__ import annotations

from typing import Any

from torch import fx

from stepladder.seam.inductor import GraphPass

from .gelu_pass import GeluPass
from .max_pool_pass import MaxPoolPass


class PreGradPass(GraphPass):
    """Run by Inductor before autograd.

    Args:
        selective: blocks save their matmuls' results and recompute the rest. A fused linear_gelu
            would be recomputed with its matmul, so linear and GELU stay separate.
    """

    def __init__(self, *, selective: bool = False) -> None:
        super().__init__()
        self.passes = (MaxPoolPass(),) if selective else (GeluPass(), MaxPoolPass())

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> Any:
        """The compiler's cache key: that of all the passes."""
        return tuple(each.uuid() for each in self.passes)
