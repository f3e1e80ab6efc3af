"""Tensor parallelism for linears with LoRA adapters (peft), whose pairs of matrices are cut along.

A pair is a matrix that projects the input down (A) and one that projects it up (B). Where the
linear is split by columns, B is split as the linear is and every rank has all of A. Where it is
split by rows, A is, and every rank's B gives a part of the sum. The matrix of a pair that all ranks
have saw a part of the work on each, so its gradients are summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from stepladder.errors import ModelError
from stepladder.model import base_layer
from stepladder.model.nf4_linear import NF4Linear
from stepladder.seam.modules import parameters_of

from .local_compute import Change, distribute, run_on_local

PACKED_REMEDY = "Use ddp or zero3, or leave base=nf4 out."
REMEDY = "Use plain LoRA of linears, or shard or pipeline."


def check_adapters(module: nn.Module) -> None:
    """Refuse adapters that do more than add the product of two matrices to a linear's answer."""
    for name, part in module.named_modules():
        if len(getattr(part, "lora_embedding_A", ())):
            raise ModelError(name, "is an embedding with adapters, which cannot be cut", REMEDY)
        if isinstance(part, NF4Linear):
            raise ModelError(name, "is held in 4 bits, whose blocks are not cut", PACKED_REMEDY)
        variants = getattr(part, "lora_variant", None)
        if base_layer(part) is not part and variants:
            kind = type(next(iter(variants.values()))).__name__
            raise ModelError(name, f"its adapters ({kind}) read whole matrices", REMEDY)


def cut_widening(layer: Any, mesh: DeviceMesh, pick: Change | None, enter: Change | None) -> None:
    """Cut the adapters of a linear that is cut by columns, as its columns are.

    Args:
        pick: this rank's of columns that do not lie together; their matrix is then held whole.
    """
    for narrow, wide in pairs(layer):
        replicate(narrow, mesh)
        if pick is not None:
            replicate(wide, mesh, pick={name: pick for name, _ in wide.named_parameters()})
            continue
        distribute(wide, mesh, {"weight": Shard(0), "bias": Shard(0)}, shares=False)
        run_on_local(wide, [wide], shares=False)
    if enter is not None:
        run_on_local(layer, (), shares=False, enter=enter)


def cut_narrowing(name: str, layer: Any, mesh: DeviceMesh, leave: Change, *, sliced: bool) -> None:
    """Cut the adapters of a linear that is cut by rows; what leaves it is the sum of all."""
    for narrow, wide in pairs(layer):
        if wide.bias is not None:
            raise ModelError(name, "its adapters have a bias, which every rank would add", REMEDY)
        distribute(narrow, mesh, {"weight": Shard(1)}, shares=False)
        run_on_local(narrow, [narrow], shares=False)
        replicate(wide, mesh)
    bias = {"base_layer.bias"} if parameters_of(layer.base_layer).get("bias") is not None else set()
    run_on_local(layer, (), shares=sliced, leave=leave, added_after=frozenset(bias))


def pairs(layer: Any) -> list[tuple[Any, Any]]:
    return [(layer.lora_A[name], layer.lora_B[name]) for name in layer.lora_A]


def replicate(
    matrix: nn.Module, mesh: DeviceMesh, pick: Mapping[str, Change] | None = None
) -> None:
    """Hold a matrix whole on every rank, each of which sees a part of its work."""
    distribute(matrix, mesh, {}, shares=True)
    run_on_local(matrix, [matrix], shares=True, pick=pick)
