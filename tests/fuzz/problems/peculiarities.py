"""What people's modules have besides layers: odd parameters, buffers, freezing, hooks, tricks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

BUFFERS = {
    "float64": lambda: torch.randn(3, dtype=torch.float64),
    "float16": lambda: torch.randn(3).half(),
    "bfloat16": lambda: torch.randn(3).bfloat16(),
    "int64": lambda: torch.arange(5),
    "int32": lambda: torch.arange(3, dtype=torch.int32),
    "int16": lambda: torch.arange(3, dtype=torch.int16),
    "uint8": lambda: torch.arange(4, dtype=torch.uint8),
    "uint16": lambda: torch.tensor([1, 2, 3], dtype=torch.uint16),
    "bool": lambda: torch.tensor([True, False, True]),
    "complex64": lambda: torch.randn(2, 3, dtype=torch.complex64),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.zeros(0, 3),
    "expanded": lambda: torch.randn(1, 4).expand(3, 4),
    "strided": lambda: torch.randn(4, 6).t()[::2],
}
MORE_BUFFERS = {"expanded_one": lambda: torch.randn(1).expand(3)}  # added later: see additions.py


class Used(nn.Module):
    """Odd parameters and buffers that take part in the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        for name, part in (*self.named_parameters(), *self.named_buffers()):
            if name.startswith("read_"):
                value = part.real if part.is_complex() else part
                x = x * (1 + 0.1 * torch.tanh(value.to(x.dtype).sum()))
            elif name.startswith("running_") and self.training:
                with torch.no_grad():
                    part.lerp_(x.detach().reshape(-1, x.shape[-1]).mean(0).to(part), 0.1)
            elif name.startswith("calls_") and self.training:
                part.add_(1)
        return x


class Annealed(nn.Module):
    """Counts its calls in an attribute, computes with the count, and has it in its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return x * (1 + 0.5**self.calls)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def anneal(net: Any, spec: dict[str, Any]) -> None:
    net.norm = nn.Sequential(net.norm, Annealed())


def drop_out(net: Any, spec: dict[str, Any]) -> None:
    """Dropout that is switched off, as in frozen parts."""
    for part in net.modules():
        if isinstance(part, nn.Dropout):
            part.p = spec["p"]
            part.eval()


def add_buffer(net: Any, spec: dict[str, Any]) -> None:
    prefix = "read_" if spec.get("read") else "kept_"
    home = net.used if spec.get("read") else net
    home.register_buffer(
        prefix + spec["dtype"],
        {**BUFFERS, **MORE_BUFFERS}[spec["dtype"]](),
        persistent=spec.get("persistent", True),
    )


def add_statistic(net: Any, spec: dict[str, Any]) -> None:
    """A buffer that every training forward writes: a running mean, or a count of calls."""
    if spec["of"] == "calls":
        net.used.register_buffer("calls_made", torch.tensor(0))
    else:
        net.used.register_buffer("running_mean", torch.zeros(net.head.in_features))


def add_parameter(net: Any, spec: dict[str, Any]) -> None:
    shape = tuple(spec["shape"])
    read = spec.get("read", True) and 0 not in shape
    name = ("read_" if read else "kept_") + spec.get("name", "odd")
    net.used.register_parameter(name, nn.Parameter(0.3 * torch.randn(shape)))


def freeze(net: Any, spec: dict[str, Any]) -> None:
    for name, parameter in net.named_parameters():
        if name.startswith(spec["what"]) or name.endswith(spec["what"]):
            parameter.requires_grad_(False)


@torch.no_grad()
def zero(net: Any, spec: dict[str, Any]) -> None:
    for name, parameter in net.named_parameters():
        if spec["what"] in name:
            parameter.zero_()


def first_linear(net: Any) -> nn.Module:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    found = [part for part in net.blocks.modules() if isinstance(part, kinds)]
    return found[0] if found else net.head


def reparametrize(net: Any, spec: dict[str, Any]) -> None:
    change = {
        "weight_norm": parametrizations.weight_norm,
        "spectral_norm": parametrizations.spectral_norm,
        "old_weight_norm": weight_norm,
        "prune": lambda part: prune.l1_unstructured(part, "weight", 0.3),
    }[spec["how"]]
    change(first_linear(net))


def scale_gradient(net: Any, spec: dict[str, Any]) -> None:
    first_linear(net).weight.register_hook(lambda gradient: 0.5 * gradient)


def put_in_eval(net: Any, spec: dict[str, Any]) -> None:
    """Batch normalisations are frozen, as in fine-tuning."""
    for part in net.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
            part.eval()


def add_unused(net: Any, spec: dict[str, Any]) -> None:
    net.unused = nn.Linear(3, 2)


def cache_activation(net: Any, spec: dict[str, Any]) -> None:
    """The module remembers an activation, with its graph, between calls; one from before too."""
    net.last_activation = net.head.weight * 2
    part = net.blocks[0] if len(net.blocks) else net.head
    part.register_forward_hook(lambda part, given, made: setattr(net, "last_activation", made))


def cast_forward(net: Any, spec: dict[str, Any]) -> None:
    """Part of the module computes in float64."""
    head = net.head
    head.register_forward_hook(lambda part, given, made: made.double().float().to(made.dtype))


PECULIARITIES = {
    "buffer": add_buffer,
    "statistic": add_statistic,
    "parameter": add_parameter,
    "frozen": freeze,
    "zero": zero,
    "reparametrized": reparametrize,
    "gradient_hook": scale_gradient,
    "eval": put_in_eval,
    "unused": add_unused,
    "cached": cache_activation,
    "cast": cast_forward,
    "annealed": anneal,
    "dropout": drop_out,
}
