"""Activations that wait in host memory.

What forward keeps lies idle until backward comes to it. A GPU's memory is dear and the host's is
cheap, so send it there and fetch it back: autograd calls `pack` for each tensor it saves and
`unpack` when backward needs it, and what lies between is ours to choose.

Three things make it right and cheap. Parameters are not going away, so they stay. A storage that
two layers save travels once. And what comes back must have the strides it had, or the arithmetic is
not the same to the bit. torch.autograd.graph.save_on_cpu does the first cut of this; stepladder's
offload rung does it beside the compute.

Without a GPU host and device are the same memory, and the copies prove it all the same.

Claim: gradients are the same to the bit, nothing but parameters stays on the device, and fewer
bytes travel than with torch.autograd.graph.save_on_cpu, which also sends parameters, and what two
layers share twice.

Predict: Three linear layers of 64 and two ReLUs read 256 rows: save_on_cpu sends 416 KiB. How many
KiB travel when parameters stay and each storage travels once? [KiB sent; sent = each storage once]

Often wrong:
- parameters are sent along
- a storage that two layers save is sent twice
- strides are lost on the way
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from stepladder.labs.equipment.saved_bytes import Kept

HOST = torch.device("cpu")


class Offload(saved_tensors_hooks):
    """Within it, what autograd saves waits in host memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(self.pack, self.unpack)
        self.known = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}  # by address: what is there, its copy
        self.sent_bytes = self.stayed_bytes = 0

    def pack(self, tensor: Tensor) -> Any:
        address = tensor.untyped_storage().data_ptr()
        # >>> A parameter is not going away: let it stay.
        # ??? self.known has the addresses of what stays.
        # ??? unpack gives a tensor back as it is: what may pack return, then?
        if address in self.known:
            return tensor.detach()
        # <<< pass
        # >>> Send the whole storage to HOST, unless it was sent before, and count its bytes.
        # ??? Two layers may save two views of one storage. What do the views have in common?
        # ??? A whole storage is a flat row of all its elements: as_strided reads it so, whatever
        # ???   the view.
        # ??? self.sent keeps, by address, what is there and its copy. to(HOST, copy=True) copies
        # ???   even where the host is the device.
        if address not in self.sent:
            elements = tensor.untyped_storage().nbytes() // tensor.itemsize
            flat = tensor.detach().as_strided((elements,), (1,), 0)
            # The original is kept beside its copy while the step runs: were it freed, another
            # storage could get its address. The real rung watches storages instead.
            self.sent[address] = flat, flat.to(HOST, copy=True)
            self.sent_bytes += flat.nbytes
        # <<< self.stayed_bytes += tensor.nbytes
        # <<< return tensor.detach()
        how = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device)
        return address, how

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        address, (shape, strides, offset, device) = packed
        # >>> The tensor as it was saved, on its device: its numbers in its shape, strides and
        # >>> offset.
        # ??? The copy is one flat row. Which method reads a row as any view of it?
        # ??? pack noted all that is needed.
        return self.sent[address][1].to(device).as_strided(shape, strides, offset)
        # <<< raise NotImplementedError


def network(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width),
    )  # fmt: skip


def saved_bytes(model: nn.Module, x: Tensor) -> int:
    """All that autograd saves, as often as it is saved: what save_on_cpu sends."""
    seen: list[int] = []

    def see(tensor: Tensor) -> Tensor:
        seen.append(tensor.nbytes)
        return tensor.detach()

    with saved_tensors_hooks(see, lambda tensor: tensor):
        model(x).square().mean()
    return sum(seen)


def measure() -> list[dict[str, Any]]:
    model, x = network(), torch.randn(256, 64)
    with Kept(model) as kept:
        held = model(x).square().mean(), kept.bytes
    offload = Offload(model)
    with offload:
        model(x).square().mean()
    by_name = {
        "nothing": (held[1], 0),
        "by save_on_cpu": (0, saved_bytes(model, x)),
        "each storage once": (offload.stayed_bytes, offload.sent_bytes),
    }
    return [
        {"sent": name, "KiB on the device": stayed / 1024, "KiB sent": sent / 1024}
        for name, (stayed, sent) in by_name.items()
    ]


if __name__ == "__main__":
    for row in measure():
        print(row)
