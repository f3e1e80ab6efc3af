"""Compiling in tests of what the compiler is told to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

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


@contextmanager
def without_machine_code() -> Iterator[None]:
    """What is compiled here is traced, cut into graphs and differentiated as always, and its graphs
    are then run as they are: a code generator takes a processor half a minute for a small model."""
    generate = torch.compile

    def trace(function: Callable[..., Any], **given: Any) -> Any:
        return generate(function, **{**given, "backend": "aot_eager", "options": None})

    with patch.object(torch, "compile", trace):
        yield
