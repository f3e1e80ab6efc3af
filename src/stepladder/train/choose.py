"""What `plan="auto"` chooses, with its reason."""

from __future__ import annotations

import torch

from stepladder.plan import Plan
from stepladder.world import Place, pick_device


def choose_plan(text: str, device: str, place: Place) -> Plan:
    """The plan a text names; for `auto`, the one for the device this process has."""
    if text.split()[:1] != ["auto"]:
        return Plan.parse(text)
    words = [precision_for(pick_device(device, place.local_rank))[0], *text.split()[1:]]
    if place.num_ranks > 1:
        words.append("ddp")
    return Plan.parse(" ".join(words))


def precision_for(device: torch.device) -> tuple[str, str]:
    """A precision and why."""
    if device.type != "cuda":
        return "fp32", "a CPU gains little from fewer bits in a small model, and fp32 is exact"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16", "this device has bf16 matrix units, and fp16 would need loss scaling"
    if torch.cuda.get_device_capability(device) >= (7, 0):
        return "fp16", "this device has fp16 matrix units and none for bf16"
    return "fp32", "this device has no matrix units for fewer bits"
