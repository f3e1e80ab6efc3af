"""Refuses modules that call a layer of a block while the block itself does not run.

DiT reads the embedding inside its first block again after the last. ZeRO 2 and 3 gather a block's
parameters when the block is called, and a pipeline stage has only its own blocks, so the layer
would find no parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from stepladder.errors import ModelError
from stepladder.seam.modules import parameters_of


class OutsideCalls:
    """Watches the layers of some blocks until `stop`."""

    def __init__(
        self, model: str, blocks: Sequence[tuple[str, nn.Module]], field: str, remedy: str
    ) -> None:
        self.model, self.field, self.remedy = model, field, remedy
        self.running: set[nn.Module] = set()
        self.handles: list[Any] = []
        for name, block in blocks:
            # Before other hooks, and after them also where the block raises.
            self.handles += [
                block.register_forward_pre_hook(self.enter, prepend=True),
                block.register_forward_hook(self.leave, always_call=True),
            ]
            for word, part in block.named_modules():
                if part is not block and any(p is not None for p in parameters_of(part).values()):
                    check = partial(self.check, block, f"{name}.{word}")
                    self.handles.append(part.register_forward_pre_hook(check, prepend=True))

    def enter(self, block: nn.Module, args: Any) -> None:
        self.running.add(block)

    def leave(self, block: nn.Module, args: Any, output: Any) -> None:
        self.running.discard(block)

    def check(self, block: nn.Module, name: str, part: nn.Module, args: Any) -> None:
        if block not in self.running:
            problem = f"{self.model} calls '{name}' outside the block that it belongs to"
            raise ModelError(self.field, problem, self.remedy)

    def stop(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
