"""Blocks of generated modules, each a function of a stream that keeps its shape.

Sequences are (rows, length, width), vectors (rows, width), images (rows, width, side, side).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, -1),
}


class FeatureNorm(nn.Module):
    """A normalisation that expects channels in the second place, for (rows, length, width)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, -1)).transpose(1, -1)


def make_norm(kind: str, width: int, stream: str) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if stream == "image":
        return {
            "batch": lambda: nn.BatchNorm2d(width),
            "layer": lambda: nn.GroupNorm(1, width),
            "rms": lambda: nn.GroupNorm(2, width),
            "group": lambda: nn.GroupNorm(2, width),
            "instance": lambda: nn.InstanceNorm2d(width, affine=True),
        }[kind]()
    if kind in ("layer", "rms"):
        return nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)
    plain = nn.BatchNorm1d(width) if kind == "batch" else nn.GroupNorm(2, width)
    return plain if stream == "vector" else FeatureNorm(plain)


class Mlp(nn.Module):
    """Two linears, or three with a gate, and a residual."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        hidden = spec.get("hidden", 2 * width)
        self.norm = make_norm(spec.get("norm", "layer"), width, stream)
        self.fc1 = nn.Linear(width, hidden, bias=spec.get("bias", True))
        if spec.get("gated"):
            self.gate = nn.Linear(width, hidden, bias=spec.get("bias", True))
        self.fc2 = nn.Linear(hidden, width, bias=spec.get("bias", True))
        self.dropout = nn.Dropout(0.0)
        self.activation, self.residual = spec.get("activation", "gelu"), spec.get("residual", True)
        self.inplace = spec.get("inplace", False)
        self.overwrite = spec.get("overwrite", False)

    def forward(self, x: Tensor) -> Tensor:
        if self.inplace:
            x = x * 1.0
            x.mul_(0.9)
        h = self.fc1(self.norm(x))
        h = torch.relu_(h) if self.overwrite else ACTIVATIONS[self.activation](h)
        if hasattr(self, "gate"):
            h = h * self.gate(self.norm(x))
        y = self.dropout(self.fc2(h))
        return x + y if self.residual else y


class Attention(nn.Module):
    """Self-attention written by hand or by torch, and an MLP behind it."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        self.heads, self.causal = spec.get("heads", 2), spec.get("causal", True)
        self.style = spec.get("style", "sdpa")
        self.head_width = None if spec.get("inferred") else width // self.heads
        bias = spec.get("bias", True)
        self.norm = make_norm(spec.get("norm", "layer"), width, stream)
        if spec.get("fused"):
            self.qkv = nn.Linear(width, 3 * width, bias=bias)
        elif self.style == "torch":
            self.attend = nn.MultiheadAttention(width, self.heads, batch_first=True, bias=bias)
        else:
            self.q_proj = nn.Linear(width, width, bias=bias)
            self.k_proj = nn.Linear(width, width, bias=bias)
            self.v_proj = nn.Linear(width, width, bias=bias)
        if self.style != "torch":
            self.o_proj = nn.Linear(width, width, bias=bias)
        self.mlp = Mlp({**spec.get("mlp", {}), "residual": True}, width, stream)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attention(self.norm(x)))

    def attention(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        if self.style == "torch":
            mask = hidden if self.causal else None
            return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]
        if hasattr(self, "qkv"):
            parts = self.qkv(x).chunk(3, -1)
        else:
            parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        each = self.head_width or width // self.heads
        q, k, v = (p.view(rows, length, -1, each).transpose(1, 2) for p in parts)
        if self.style == "sdpa":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            if self.causal:
                scores = scores.masked_fill(hidden, float("-inf"))
            y = scores.softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class Recurrent(nn.Module):
    """An LSTM or GRU with a residual."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[spec.get("cell", "lstm")]
        self.norm = make_norm(spec.get("norm", "none"), width, stream)
        self.cell = kind(width, width, num_layers=spec.get("layers", 1), batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cell(self.norm(x))[0]


class Convolution(nn.Module):
    """A convolution over an image or along a sequence (causal or not), with norm and residual."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        self.stream, self.size = stream, spec.get("size", 3)
        self.dilation = spec.get("dilation", 1)
        kind = nn.Conv2d if stream == "image" else nn.Conv1d
        groups = width if spec.get("depthwise") else 1
        pad = self.dilation * (self.size // 2)
        self.conv = kind(
            width, width, self.size, padding=pad, groups=groups, dilation=self.dilation,
            bias=spec.get("bias", True),
        )  # fmt: skip
        self.norm = make_norm(spec.get("norm", "group"), width, stream)
        self.activation = spec.get("activation", "relu")

    def forward(self, x: Tensor) -> Tensor:
        if self.stream == "image":
            return x + ACTIVATIONS[self.activation](self.norm(self.conv(x)))
        y = self.conv(x.transpose(1, 2)).transpose(1, 2)
        return x + ACTIVATIONS[self.activation](self.norm(y))


class Experts(nn.Module):
    """Each token goes to one expert, chosen by the sign of a score: an expert may be idle."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        self.router = nn.Linear(width, spec.get("experts", 3))
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(spec.get("experts", 3)))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            mine = chosen == index
            if mine.any():
                out[mine] = weights[mine].unsqueeze(-1) * torch.tanh(expert(flat[mine]))
        return x + out.view_as(x)


class Branch(nn.Module):
    """A branch that only some rows take; where no row of a batch does, it is not called."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        score = x.detach().reshape(len(x), -1).sum(1)
        rare = (score > 1.0).view(-1, *[1] * (x.dim() - 1))
        y = torch.tanh(self.usual(x))
        if rare.any():
            y = torch.where(rare, torch.tanh(self.rare(x)), y)
        return x + y


class TokenMixer(nn.Module):
    """A linear over positions, as MLP-Mixer has."""

    def __init__(self, spec: dict[str, Any], width: int, stream: str) -> None:
        super().__init__()
        self.norm = make_norm(spec.get("norm", "layer"), width, stream)
        self.mix = nn.Linear(spec["length"], spec["length"])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)


BLOCKS = {
    "mlp": Mlp,
    "attention": Attention,
    "recurrent": Recurrent,
    "conv": Convolution,
    "experts": Experts,
    "branch": Branch,
    "mixer": TokenMixer,
}
STREAMS = {  # which blocks a stream may have
    "sequence": ("mlp", "attention", "recurrent", "conv", "experts", "branch", "mixer"),
    "vector": ("mlp", "branch", "experts"),
    "image": ("conv",),
}


def make_block(spec: dict[str, Any], width: int, stream: str) -> nn.Module:
    return BLOCKS[spec["type"]](spec, width, stream)
