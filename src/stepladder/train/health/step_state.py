"""All that a step changes: found, copied before it, and put back to take the step again.

Tensors are put back in place, because recorded graphs, shards and a user's code refer to them. What
replaced a tensor, or came into a dictionary that held none, is taken away again. What user code
keeps outside of the module, the loss and the optimizer is not found.
"""

from __future__ import annotations

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.data import Batch
from stepladder.errors import ModelError
from stepladder.rungs import Climbed, LossScale, local
from stepladder.rungs.forward_effects.written_buffers import is_expanded
from stepladder.seam.modules import buffers_of, module_attributes
from stepladder.seam.pytree import tree_leaves
from stepladder.train.checkpointing.attribute_values import (
    MOST,
    class_values,
    is_code,
    moves,
    own_classes,
    parts_of,
)
from stepladder.train.checkpointing.rank_state import has_extra_state
from stepladder.train.tuning.loss_state import note, put_back_dict, put_back_items
from stepladder.world.generator_state import (
    GENERATORS,
    generator_state,
    set_generator_state,
)

Restore = Callable[[], None]
MAPPINGS, SEQUENCES = (dict, OrderedDict, defaultdict), (list, set, deque)  # no class of a user's


class StepState:
    """Tensors that live from step to step, and how what holds them is put back."""

    def __init__(
        self,
        climbed: Climbed,
        optimizer: torch.optim.Optimizer,
        scale: LossScale,
        device: torch.device,
        batch: Batch,
    ) -> None:
        self.restores: list[Restore] = []
        self.seen: set[Any] = set()
        self.moving: list[str] = []  # kinds of iterators, which nobody can put back
        self.parameters = list(self.keep([local(p.detach()) for p in climbed.state.parameters()]))
        # A shard is a view of its parameter, unless it is a copy on the host.
        self.seen |= {place(s.owned) for s in climbed.shards if is_view(s.owned, s.parameter)}
        self.optimizer = list(self.keep_attributes(optimizer))
        self.buffers = [t for part in climbed.state.modules() for t in self.keep_part(part)]
        for kind in own_classes(type(part) for part in climbed.state.modules()):
            self.buffers += self.keep_class(kind)
        self.others = list(self.keep([scale.scale, scale.good_steps]))
        if owed := climbed.forward_backward.gradient_sync.compression:
            self.others += self.keep([owed.factors, owed.missed])
        self.others += self.keep_loss(climbed)
        self.batch = list(self.keep(tree_leaves((batch.inputs, batch.targets))))
        self.restores += generators_put_back(device)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.parameters, *self.optimizer, *self.buffers, *self.others, *self.batch]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def keep(self, value: Any) -> Iterator[Tensor]:
        """Note how a value and all that it holds are put back; the tensors among it, each once."""
        kind = type(value)
        if isinstance(value, Tensor):
            if is_plain(value) and place(value) not in self.seen:
                self.seen.add(place(value))
                yield local(value).detach()
        elif kind in MAPPINGS and id(value) not in self.seen:
            self.seen.add(id(value))
            self.restores.append(partial(put_back_dict, value, dict(value)))
            for item in value.values():
                yield from self.keep(item)
        elif kind in SEQUENCES and id(value) not in self.seen:
            self.seen.add(id(value))
            self.restores.append(partial(put_back_items, value, list(value)))
            for item in value:
                yield from self.keep(item)
        elif isinstance(value, GENERATORS):
            self.restores.append(partial(set_generator_state, value, generator_state(value)))
        elif isinstance(value, np.ndarray):
            self.restores.append(partial(np.copyto, value, value.copy()))
        elif not is_code(value) and id(value) not in self.seen and len(self.seen) < MOST:
            self.seen.add(id(value))
            if moves(value):
                self.moving.append(kind.__name__)
            elif parts_of(value) is not None and hasattr(value, "__dict__"):
                yield from self.keep_attributes(value)
            elif kind is tuple:
                for item in value:
                    yield from self.keep(item)

    def keep_attributes(self, holder: Any) -> Iterator[Tensor]:
        """The same of what an object has for its own."""
        attributes = vars(holder)
        self.restores.append(partial(put_back_dict, attributes, dict(attributes)))
        for value in list(attributes.values()):
            yield from self.keep(value)

    def keep_class(self, kind: type) -> Iterator[Tensor]:
        for name, value in class_values(kind).items():
            self.restores.append(partial(setattr, kind, name, value))
            yield from self.keep(value)

    def keep_part(self, part: nn.Module) -> Iterator[Tensor]:
        buffers = buffers_of(part)
        yield from self.keep(buffers)
        attributes = module_attributes(part)
        self.restores.append(partial(put_back_attributes, part, attributes))
        for value in attributes.values():
            yield from self.keep(value)
        if has_extra_state(part):
            self.restores.append(partial(part.set_extra_state, deepcopy(part.get_extra_state())))

    def keep_loss(self, climbed: Climbed) -> Iterator[Tensor]:
        function = climbed.forward_backward.loss.function
        if isinstance(function, nn.Module):
            known = set(climbed.state.modules())
            for part in function.modules():
                if part not in known:
                    yield from self.keep_part(part)
            return
        noted: list[Restore] = []
        try:
            note(function, noted, set())
        except ModelError:  # it holds what cannot be put back, such as another network
            return
        self.restores += noted


class StateCopy:
    """A copy of the state before a step."""

    def __init__(self, state: StepState, *, on_host: bool) -> None:
        self.state = state
        self.copies = [
            tensor.to("cpu", copy=True) if on_host else tensor.clone() for tensor in state.tensors
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        for restore in self.state.restores:
            restore()
        for tensor, before in zip(self.state.tensors, self.copies):
            tensor.copy_(before)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has values of its own, and not those of a graph that a pass built."""
    dense = tensor.layout is torch.strided and not tensor.is_meta and not is_expanded(tensor)
    return dense and (tensor.is_leaf or not tensor.requires_grad)


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Where in memory a tensor lies."""
    there = local(tensor)
    return there.device, there.data_ptr(), there.nbytes, there.stride()


def is_view(tensor: Tensor, whole: Tensor) -> bool:
    mine, its = tensor.untyped_storage(), local(whole).untyped_storage()
    return tensor.device == whole.device and mine.data_ptr() == its.data_ptr()


def put_back_attributes(part: nn.Module, before: dict[str, Any]) -> None:
    for name in module_attributes(part).keys() - before.keys():
        del vars(part)[name]
    vars(part).update(before)


def generators_put_back(device: torch.device) -> list[Restore]:
    found: list[Restore] = [
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state()),
        partial(torch.set_rng_state, torch.get_rng_state()),
    ]
    if device.type == "cuda":
        found.append(partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device))
    return found


def is_room_for(num_bytes: int, device: torch.device, limit_bytes: int | None) -> bool:
    """Whether so much memory is free on a device, beside the most that a step has needed."""
    if device.type != "cuda":
        return True
    allocated = torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
    if limit_bytes is not None:
        free = min(free, limit_bytes - allocated)
    return free - (torch.cuda.max_memory_allocated(device) - allocated) >= num_bytes
