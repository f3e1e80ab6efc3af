"""Every rank starts from rank 0's parameters and buffers.

torch's DDP broadcasts rank 0's parameters; FSDP2 does not, and would silently build one model from
shards of different ones. So they are broadcast before any rung shards or cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.checkpoint import as_bytes
from stepladder.errors import ModelError
from stepladder.model import Anatomy
from stepladder.model.builtin.initialise import initialise
from stepladder.plan.shared_constants import PARAMETER_BUCKET_BYTES
from stepladder.world import World


@torch.no_grad()
def broadcast_parameters(module: nn.Module, world: World) -> None:
    """Give every rank the parameters and buffers of rank 0.

    One bucket at a time passes through the device, so that a module too large for it can stay on
    the host until it is sharded.
    """
    if world.mesh is None or world.layout.num_ranks == 1:
        return
    tensors = [t for t in (*module.parameters(), *module.buffers()) if not t.is_meta]
    for tensor in tensors:
        if not is_strided(tensor):
            whole = [tensor]
            dist.broadcast_object_list(whole, src=0)
            tensor.copy_(whole[0])
    for bucket in buckets(stored(tensor) for tensor in tensors if is_strided(tensor)):
        # As bytes: the backends do not send every type (uint16, complex numbers).
        sent = [as_bytes(tensor) for tensor in bucket]
        flat = torch.cat(sent).to(world.device)
        dist.broadcast(flat, src=0)
        for tensor, value in zip(bucket, flat.split([part.numel() for part in sent])):
            tensor.copy_(value.to(tensor.device).clone().view(tensor.dtype).view(tensor.shape))


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor is plain numbers in memory: neither sparse nor quantised."""
    return tensor.layout is torch.strided and not tensor.is_quantized


def stored(tensor: Tensor) -> Tensor:
    """The numbers that a tensor stores: each once, where it was expanded."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def buckets(
    tensors: Iterable[Tensor], size_bytes: int = PARAMETER_BUCKET_BYTES
) -> Iterator[list[Tensor]]:
    """Tensors of one type and device together, about `size_bytes` at a time."""
    filling: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        bucket = filling.setdefault((tensor.dtype, tensor.device), [])
        bucket.append(tensor)
        if sum(t.nbytes for t in bucket) >= size_bytes:
            yield filling.pop((tensor.dtype, tensor.device))
    yield from filling.values()


def is_on_meta(module: nn.Module) -> bool:
    """Whether any parameter or buffer is on the meta device, without values."""
    return any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))


def materialize(module: nn.Module, device: torch.device, seed: int) -> None:
    """Initialise a module that was built on the meta device; each rank its own part."""
    if not declares_anatomy(module):
        raise ModelError(
            type(module).__name__,
            "is on the meta device, and how its first values are drawn is not known",
            "Build it on the CPU, or use a built-in model by its name.",
        )
    module.to_empty(device=device)
    initialise(module, seed)


def declares_anatomy(module: nn.Module) -> bool:
    """Whether the model declares its anatomy: then every pass uses every parameter."""
    return isinstance(getattr(module, "anatomy", None), Anatomy)
