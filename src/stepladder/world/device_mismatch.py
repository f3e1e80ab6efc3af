"""Tensors on the wrong device, reported in one line instead of torch's traceback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import nn

from stepladder.errors import ModelError


def explain_placement(
    module: nn.Module, batch: object, device: torch.device | str
) -> ModelError | None:
    """Name the first parameter, buffer or batch tensor that is not on `device`; None if all are."""
    wanted = torch.device(device)
    for kind, name, tensor in _named_tensors(module):
        if on_other_device(tensor, wanted):
            return _module_error(kind, name, tensor, wanted)
    for name, tensor in tensors_of(batch):
        if on_other_device(tensor, wanted):
            return _batch_error(name, tensor, module, wanted)
    return None


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    parameters = (("parameter", *item) for item in module.named_parameters())
    return chain(parameters, (("buffer", *item) for item in module.named_buffers()))


def tensors_of(batch: object, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of a nested batch, with the Python expression that reaches it."""
    if isinstance(batch, torch.Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors_of(value, f"{path}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from tensors_of(value, f"{path}[{index}]")


def on_other_device(tensor: torch.Tensor, wanted: torch.device) -> bool:
    """Whether torch would refuse to combine it with tensors on `wanted`."""
    if tensor.dim() == 0 and tensor.device.type == "cpu":
        return False  # torch combines CPU scalars with tensors on any device
    if tensor.device.type != wanted.type:
        return True
    return None not in (wanted.index, tensor.device.index) and tensor.device != wanted


def _module_error(kind: str, name: str, tensor: torch.Tensor, wanted: torch.device) -> ModelError:
    problem = f"{kind} on {tensor.device} while the run is on {wanted}"
    if tensor.is_meta:
        problem = f"{kind} without values (on meta) while the run is on {wanted}"
        remedy = (
            f"Give it memory with model.to_empty(device='{wanted}'), then load or initialise it."
        )
        return ModelError(f"'{name}'", problem, remedy)
    remedy = f"Move the model with model.to('{wanted}') before climbing."
    if kind == "buffer":
        remedy = (
            f"Move the model with model.to('{wanted}'), and make the buffer on its input's device."
        )
    return ModelError(f"'{name}'", problem, remedy)


def _batch_error(
    name: str, tensor: torch.Tensor, module: nn.Module, wanted: torch.device
) -> ModelError:
    anchor = next((owned for _, owned, _ in _named_tensors(module)), None)
    where = f"the model's '{anchor}' is on {wanted}" if anchor else f"the run is on {wanted}"
    if tensor.is_meta:
        remedy = f"It has no values: build it on '{wanted}'."
        return ModelError(name, f"on meta while {where}", remedy)
    remedy = f"Move it with {name}.to('{wanted}'), or give the batch to run.step, which does."
    return ModelError(name, f"on {tensor.device} while {where}", remedy)
