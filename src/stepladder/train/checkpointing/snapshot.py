"""What this rank writes of a run, apart from the run; see [Note: when the copy is taken]."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from mmap import PAGESIZE as PAGE
from typing import Any

import torch
from torch import Tensor

from stepladder.checkpoint.hashing import THREADS
from stepladder.model import builtin_shape
from stepladder.model.huggingface.saved_settings import model_settings
from stepladder.train.engine import Engine
from stepladder.train.optimizer.build_optimizer import own_rates
from stepladder.train.optimizer.error_feedback import read_owed
from stepladder.version import VERSION

from .async_copy import Copying
from .rng_state import read_generators
from .sharded_state import Holding, holdings

NOTE_BYTES = 6 * 2**10  # of one box: what is known of it, here and as JSON; 4.2 KiB were measured
THREAD_BYTES = 2**19  # of one that writes, one that waits for the disk or the one that commits
ON_PAGES = 2**17  # what is larger gets pages of its own, and up to one for their head
ALIGNED = 2**7  # the head of what is smaller, and its rounding


@dataclass(slots=True)
class Snapshot:
    """What this rank writes of a run."""

    step: int
    state: dict[str, Any]
    files: dict[str, dict[str, Tensor]]  # by file, by key
    places: dict[str, list[tuple[Holding, str]]]  # of each tensor: its boxes, and in which file
    copying: Copying | None = None  # None: these are the run's own tensors
    refused: str = ""  # why there is nothing to write


def take_snapshot(run: Engine, buffers: dict[str, Tensor] | None) -> Snapshot:
    """This rank's part of the run's state. With `buffers` copies of it are begun; else it is the
    run's own, and the run must stand still until it is written."""
    rank = run.world.place.rank
    files: dict[str, dict[str, Tensor]] = {}
    places: dict[str, list[tuple[Holding, str]]] = {}
    pairs = []
    for holding in holdings(run.climbed, run.optimizer, run.world):
        if not holding.mine:
            continue
        file = f"{holding.name.partition('/')[0]}-{rank:05d}.safetensors"
        here = holding.tensor.detach()
        if buffers is None:
            kept = here.cpu()
        else:
            kept = place_for(here, f"{holding.name}{holding.box.start}", buffers)
            pairs.append((kept, here))
        files.setdefault(file, {})[holding.key] = kept
        places.setdefault(holding.name, []).append((holding, file))
    own = {**read_generators(run.world.device), **read_owed(run.climbed)}
    files[f"rank-{rank:05d}.safetensors"] = own
    taken = Snapshot(run.index, describe(run), files, places)
    if buffers is not None:
        taken.copying = Copying(run.world.device)
        changing = {buffer.data_ptr() for buffer in run.module.buffers()}
        for there, here in pairs:
            if here.data_ptr() in changing:
                there.copy_(here)
        taken.copying.begin([pair for pair in pairs if pair[1].data_ptr() not in changing])
    return taken


def forecast_snapshot(run: Engine) -> int:
    """Bytes of host memory that a save in the background takes on this rank at most.

    All but what notes and threads take is kept for the next.
    """
    mine = [held for held in holdings(run.climbed, run.optimizer, run.world) if held.mine]
    pinned = run.world.device.type == "cuda"
    copies = sum(host_bytes(held.tensor.nbytes, pinned) for held in mine)
    return copies + len(mine) * NOTE_BYTES + (THREADS + 2) * THREAD_BYTES


def host_bytes(size: int, pinned: bool) -> int:
    """What `place_for` takes for so many bytes."""
    if pinned:
        return 1 << max(size - 1, 0).bit_length()  # as torch's allocator rounds
    return size + (2 * PAGE if size >= ON_PAGES else ALIGNED)


def place_for(tensor: Tensor, label: str, buffers: dict[str, Tensor]) -> Tensor:
    """Host memory for a tensor: what the last save used, where it fits."""
    there = buffers.get(label)
    if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
        pinned = tensor.device.type == "cuda"  # else the copy would hold the host
        there = buffers[label] = torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned
        )
    return there


def describe(run: Engine) -> dict[str, Any]:
    run.look_back()  # what it decides later must follow from what is saved
    shape = builtin_shape(run.module)
    return {
        "step": run.index,
        "position": run.position,
        "seed": run.seed,
        "shape": asdict(shape) if shape else None,
        **model_settings(run.flops.module),  # as it was before any rung
        "plan": str(run.plan),
        "optimizer": str(run.plan.optimizer),
        "rate": str(run.rate),
        "own_rates": own_rates(run.optimizer),
        "loss_scale": run.scale.state_dict(),
        "health": run.health.state_dict(),
        "versions": {
            "stepladder": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
