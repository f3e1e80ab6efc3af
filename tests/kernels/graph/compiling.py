"""Compiling in tests of what the compiler is told to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch._functorch.config
import torch._inductor.config


@contextmanager
def every_pass_runs() -> Iterator[None]:
    """Graphs that were compiled before are passed through again; machine code that was is kept."""
    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
