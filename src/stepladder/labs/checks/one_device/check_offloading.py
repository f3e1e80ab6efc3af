"""Checks of offloading: gradients to the bit, bytes counted against torch's own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu

from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "parameters are sent along",
        "        if address in self.known:\n            return tensor.detach()\n",
        "",
        "the weights travelled too",
    ),
    Mistake(
        "a storage that two layers save is sent twice",
        "        if address not in self.sent:\n",
        "        if True:\n",
        "a storage travels once",
    ),
    Mistake(
        "strides are lost on the way",
        ".as_strided(shape, strides, offset)",
        "[: torch.Size(shape).numel()].view(shape)",
        "strides or offset were lost",
    ),
)


def gradients(model: nn.Module, x: Tensor, around: Any) -> list[Tensor]:
    model.zero_grad()
    with around:
        loss = model(x).square().mean()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def check_gradients(lesson: ModuleType) -> None:
    """Gradients are those of save_on_cpu, to the bit, whatever the strides."""
    model = lesson.network(8)
    whole = torch.randn(12, 8)
    for name, x in (("rows", whole), ("columns", torch.randn(8, 6).t()), ("a slice", whole[4:])):
        theirs = gradients(model, x, save_on_cpu())
        found = gradients(model, x, lesson.Offload(model))
        for mine, other in zip(found, theirs, strict=True):
            same = torch.equal(mine, other)
            expect(same, f"inputs in {name}: another gradient; strides or offset were lost.")


def check_bytes(lesson: ModuleType) -> None:
    """Activations travel, once each; parameters stay."""
    model, x = lesson.network(8), torch.randn(16, 8)
    offload = lesson.Offload(model)
    gradients(model, x, offload)
    wanted = 4 * x.nbytes  # the input, two ReLUs, the output that is squared
    sent = offload.sent_bytes
    expect(sent, "nothing was sent: copy each storage to the host in pack.")
    weights = 2 * 4 * 8 * 8  # the first layer's is not needed for a gradient of the data
    expect(sent not in (wanted + weights, wanted + weights + 256),
           f"{sent} bytes, {sent - wanted} too many: the weights travelled too.")  # fmt: skip
    expect(
        sent != wanted + 2 * x.nbytes, f"{sent} bytes, expected {wanted}: a storage travels once."
    )
    expect_close(sent, wanted, "bytes sent", rtol=0)
    expect(not offload.stayed_bytes, f"{offload.stayed_bytes} bytes stayed on the device.")
    rows = lesson.measure()
    expect(rows[2]["KiB sent"] < rows[1]["KiB sent"] * 2 / 3, "a third fewer should travel.")
    expect_close(
        rows[0]["KiB on the device"], rows[2]["KiB sent"], "what would have stayed", rtol=0
    )
