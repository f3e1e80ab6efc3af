"""Our passes before autograd, bundled because Inductor takes one pre-grad pass."""

from __future__ import annotations

from typing import Any

from torch import fx

from stepladder.seam.inductor import GraphPass

from .attention_mask_pass import AttentionMaskPass
from .gelu_pass import GeluPass
from .max_pool_pass import MaxPoolPass


class PreGradPass(GraphPass):
    """Run by Inductor before autograd.

    Args:
        kernels: our kernels were asked for; without, only torch's own calls are put for others.
        selective: blocks save their matmuls' results and recompute the rest. A fused linear_gelu
            would be recomputed with its matmul, so linear and GELU stay separate.
    """

    def __init__(self, *, kernels: bool = True, selective: bool = False) -> None:
        super().__init__()
        gelu = (GeluPass(),) if kernels and not selective else ()
        pool = (MaxPoolPass(),) if kernels else ()
        self.passes = (AttentionMaskPass(), *gelu, *pool)

    def __call__(self, graph: fx.Graph) -> None:
        for each in self.passes:
            each(graph)

    def uuid(self) -> Any:
        """The compiler's cache key: that of all the passes."""
        return tuple(each.uuid() for each in self.passes)
