"""The numbers that legality rules need to know about a model and a device.

Whoever knows them fills them in: the planner from `Facts` and the device table, a run from torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelLimits:
    name: str
    tokens: int  # in one sample
    num_blocks: int
    heads: tuple[int, ...]  # of every part with attention
    key_value_heads: tuple[int, ...]
    cut_widths: tuple[tuple[str, int], ...]  # part and width, of what tensor parallelism cuts
    has_cuts: bool  # some matrices are known to be cut in pairs
    experts: tuple[int, ...]  # of every mixture
    tied: bool  # the output layer's matrix is the embedding's
    modules: bool = False  # some experts are modules in a list


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    name: str  # as a user knows it
    kind: str = "cuda"  # as torch names it
    computes: frozenset[str] | None = None  # types its matrix units multiply; None: not known
    memory_bytes: int | None = None  # that a process can be given; None: not known
    has_flash: bool = True  # or whoever builds the model finds out
    has_own_memory: bool = True  # so that something can be offloaded from it

    @property
    def on_gpu(self) -> bool:
        return self.kind == "cuda"
