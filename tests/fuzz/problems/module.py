"""A generated module: entry, blocks, head, and the peculiarities of modules that people write."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from .blocks import make_block
from .peculiarities import PECULIARITIES, Used


@dataclass
class Output:
    """An output as a class of the user's."""

    logits: Tensor
    hidden: Tensor
    loss: Tensor | None = None


class Net(nn.Module):
    """Reads tokens, frames, vectors or images, and returns logits in the form that is asked for."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.form = spec["kind"], spec.get("output", "tensor")
        self.pooled = spec["pooled"]
        width = spec["width"]
        self.stream = {"tokens": "sequence", "frames": "sequence"}.get(self.kind, self.kind)
        self.embed = make_entry(spec)
        self.positions = spec.get("positions", "none")
        if self.positions == "learned":
            self.position = nn.Embedding(spec["length"], width)
        elif self.positions == "table":
            self.register_buffer("position_table", torch.randn(spec["length"], width))
        self.skipping = spec.get("skipping", False)
        made = [
            make_block({**one, "length": spec["length"]}, width, self.stream)
            for one in spec["blocks"]
        ]
        for index in spec.get("shared", []):
            made[index] = made[0]
        self.blocks = nn.Sequential(*made) if spec.get("sequential") else nn.ModuleList(made)
        self.norm = nn.LayerNorm(width) if spec.get("final_norm") else nn.Identity()
        self.head = nn.Linear(width, spec["classes"], bias=spec.get("head_bias", True))
        if spec.get("tied"):
            self.head.weight = self.embed.weight
        self.cap = spec.get("cap")
        self.used = Used()
        self.criterion = None  # a loss of the module's own

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        x = self.embed(inputs)
        if self.positions == "learned":
            x = x + self.position(torch.arange(x.shape[1], device=x.device))
        elif self.positions == "table":
            x = x + self.position_table[: x.shape[1]]
        if isinstance(self.blocks, nn.Sequential):
            x = self.blocks(x)
        else:
            for index, block in enumerate(self.blocks):
                if not (self.skipping and index == 1 and self.training and len(x) > 100):
                    x = block(x)
        if self.stream == "image":
            x = x.flatten(2).transpose(1, 2)
        if self.pooled and x.dim() == 3:
            x = x.mean(1)
        x = self.norm(self.used(x))
        logits = self.head(x)
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)
        return self.shaped(logits, x, labels)

    def shaped(self, logits: Tensor, hidden: Tensor, labels: Tensor | None) -> Any:
        loss = None if self.criterion is None or labels is None else self.criterion(logits, labels)
        if loss is not None:
            made = Output(logits, hidden, loss)
            forms = {"class": made, "object": SimpleNamespace(**vars(made))}
            return forms.get(self.form, {"loss": loss})
        return {
            "tensor": lambda: logits,
            "tuple": lambda: (logits, hidden),
            "dict": lambda: {"logits": logits, "hidden": hidden},
            "nested": lambda: {"out": (logits, [hidden]), "count": 3},
            "class": lambda: Output(logits, hidden),
            "object": lambda: SimpleNamespace(logits=logits, hidden=hidden),
        }[self.form]()


def make_entry(spec: dict[str, Any]) -> nn.Module:
    width = spec["width"]
    if spec["kind"] == "tokens":
        options = {key: spec[key] for key in ("max_norm", "padding_idx") if key in spec}
        return nn.Embedding(spec["vocab"], width, **options)
    if spec["kind"] == "image":
        return nn.Conv2d(spec["features"], width, 3, padding=1)
    return nn.Linear(spec["features"], width)


def logits_of(outputs: Any) -> Tensor:
    """The logits in an output of any form."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, tuple):
        return outputs[0]
    if isinstance(outputs, dict):
        return outputs["logits"] if "logits" in outputs else outputs["out"][0]
    return outputs.logits


def make_module(spec: dict[str, Any], seed: int) -> Net:
    """The module with weights drawn from the seed: none is left at a constant by accident."""
    torch.manual_seed(seed)
    net = Net(spec)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    net = net.to(getattr(torch, spec.get("dtype", "float32")))
    for one in spec.get("extras", []):
        PECULIARITIES[one["type"]](net, one)
    return net
