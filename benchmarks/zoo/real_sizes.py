"""Modules of other projects at the size people train them, each with one batch on the host.

Those of libraries are built from a config with random weights; the others are written as a user
would write them, without a word of stepladder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchvision_import import import_torchvision

import_torchvision()  # before transformers, which imports it

Loss = str | Callable[[Any, Any], Tensor] | None


@dataclass(frozen=True, slots=True)
class Case:
    """A module, a batch as `run.step` takes it, and its loss as `sl.climb` takes it."""

    module: nn.Module
    batch: Any
    loss: Loss = None
    later: tuple[Any, ...] = ()  # batches of other lengths, which follow in turn

    @property
    def batches(self) -> tuple[Any, ...]:
        return (self.batch, *self.later)

    def plain_loss(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss as a script would write it, without stepladder."""
        if self.loss is None:
            return module(**batch).loss
        inputs, targets = batch
        outputs = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
        if self.loss == "cross_entropy":
            return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        if self.loss == "squared_error":
            return functional.mse_loss(outputs, targets)
        assert callable(self.loss)
        return self.loss(outputs, targets)


def text(rows: int, length: int, vocabulary: int = 50257) -> dict[str, Tensor]:
    tokens = torch.randint(0, vocabulary, (rows, length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def images(rows: int, size: int = 224, classes: int = 1000) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, size, size), torch.randint(0, classes, (rows,))


def hugging_face(kind: str, auto: str = "AutoModelForCausalLM", **settings: Any) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **settings)
    return getattr(transformers, auto).from_config(config)


def small(**settings: Any) -> dict[str, Any]:
    """A decoder of about 0.3 billion parameters."""
    shape = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 2048,
        "vocab_size": 32000,
    }  # fmt: skip
    return {**shape, **settings}


def gpt2() -> Case:
    return Case(hugging_face("gpt2"), text(16, 1024))


def llama() -> Case:
    return Case(hugging_face("llama", **small()), text(8, 2048, 32000))


def qwen2() -> Case:
    shape = small(hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                  num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
                  tie_word_embeddings=True)  # fmt: skip
    return Case(hugging_face("qwen2", **shape), text(4, 2048, 151936))


def mistral() -> Case:
    return Case(hugging_face("mistral", **small(sliding_window=1024)), text(8, 2048, 32000))


def gemma2() -> Case:
    shape = small(head_dim=64, query_pre_attn_scalar=64, vocab_size=65536, sliding_window=1024)
    return Case(hugging_face("gemma2", **shape), text(8, 1024, 65536))


def opt() -> Case:
    return Case(hugging_face("opt"), text(16, 1024, 50272))


def t5() -> Case:
    shape = {
        "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
        "decoder_start_token_id": 0,
    }  # fmt: skip
    module = hugging_face("t5", "AutoModelForSeq2SeqLM", **shape, feed_forward_proj="gated-gelu")
    batch = text(16, 512, 32128)
    return Case(module, {**batch, "labels": batch["labels"][:, :128].contiguous()})


def bert() -> Case:
    return Case(hugging_face("bert", "AutoModelForMaskedLM"), text(32, 512, 30522))


def modernbert() -> Case:
    module = hugging_face("modernbert", "AutoModelForMaskedLM", attn_implementation="sdpa")
    return Case(module, text(16, 512, 50368))


def vit() -> Case:
    pixels, labels = images(128)
    module = hugging_face("vit", "AutoModelForImageClassification", num_labels=1000)
    return Case(module, {"pixel_values": pixels, "labels": labels})


def swin() -> Case:
    pixels, labels = images(128)
    module = hugging_face("swin", "AutoModelForImageClassification", num_labels=1000)
    return Case(module, {"pixel_values": pixels, "labels": labels})


def torchvision_model(name: str, rows: int) -> Case:
    import torchvision

    return Case(getattr(torchvision.models, name)(), images(rows), "cross_entropy")


def resnet50() -> Case:
    return torchvision_model("resnet50", 256)


def convnext() -> Case:
    return torchvision_model("convnext_tiny", 128)


def efficientnet_v2() -> Case:
    return torchvision_model("efficientnet_v2_s", 128)


def vit_b_16() -> Case:
    return torchvision_model("vit_b_16", 128)


class HandBlock(nn.Module):
    """A decoder block with RMSNorm and rotary positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in (rotate(q, turn), rotate(k, turn), v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    even, odd = x.float().chunk(2, -1)
    cos, sin = turn.cos()[:, None], turn.sin()[:, None]
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), -1).to(x.dtype)


class HandGPT(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12, vocabulary: int = 50304) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(HandBlock(width, width // 64) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        frequencies = 10000.0 ** -(torch.arange(32) / 32)
        self.register_buffer("turn", torch.arange(1024)[:, None] * frequencies, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.turn[: tokens.shape[1]])
        return self.head(self.norm(x))


def hand_gpt() -> Case:
    tokens = torch.randint(0, 50304, (16, 1025))
    return Case(HandGPT(), (tokens[:, :-1].clone(), tokens[:, 1:].clone()), "cross_entropy")


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inside), nn.GroupNorm(32, outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(a, b) for a, b in zip([width, *sizes], sizes))
        self.middle = Residual(sizes[-1], sizes[-1])
        pairs = zip(reversed(sizes), [*reversed(sizes[:-1]), width])
        self.up = nn.ModuleList(Residual(2 * a, b) for a, b in pairs)
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat((x, kept.pop()), 1))
        return self.last(x)


def unet() -> Case:
    return Case(UNet(), (torch.randn(32, 3, 64, 64), torch.randn(32, 3, 64, 64)), "squared_error")


class DiTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulate = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        a, b, c, d, e, f = self.modulate(functional.silu(when))[:, None].chunk(6, -1)
        y = self.qkv(self.norm1(x) * (1 + a) + b).unflatten(-1, (3, self.heads, -1))
        q, k, v = (each.transpose(1, 2) for each in y.unbind(-3))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = x + c * self.out(mixed)
        y = functional.gelu(self.up(self.norm2(x) * (1 + d) + e), approximate="tanh")
        return x + f * self.down(y)


class DiT(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.embed, self.when = nn.Linear(16, width), nn.Linear(256, width)
        self.positions = nn.Parameter(0.02 * torch.randn(256, width))
        self.blocks = nn.ModuleList(DiTBlock(width, 12) for _ in range(depth))
        self.last = nn.Linear(width, 16)

    def forward(self, patches: Tensor, times: Tensor) -> Tensor:
        x, when = self.embed(patches) + self.positions, self.when(times)
        for block in self.blocks:
            x = block(x, when)
        return self.last(x)


def dit() -> Case:
    inputs = (torch.randn(64, 256, 16), torch.randn(64, 256))
    return Case(DiT(), (inputs, torch.randn(64, 256, 16)), "squared_error")


class LSTMModel(nn.Module):
    def __init__(self, vocabulary: int = 10000, width: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cells(self.embed(tokens))[0])


def lstm() -> Case:
    tokens = torch.randint(0, 10000, (64, 257))
    return Case(LSTMModel(), (tokens[:, :-1].clone(), tokens[:, 1:].clone()), "cross_entropy")


class MixerBlock(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = nn.Sequential(nn.Linear(places, 384), nn.GELU(), nn.Linear(384, places))
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.Sequential(*(MixerBlock(196, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def mixer() -> Case:
    return Case(Mixer(), images(128), "cross_entropy")


class TwoTowers(nn.Module):
    def __init__(self, users: int = 500_000, items: int = 200_000, width: int = 128) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        towers = [
            nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(2)
        ]
        self.user_tower, self.item_tower = towers

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        left, right = self.user_tower(self.users(users)), self.item_tower(self.items(items))
        return (left * right).sum(-1)


def click_loss(scores: Tensor, clicked: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, clicked)


def two_towers() -> Case:
    users, items = torch.randint(0, 500_000, (16384,)), torch.randint(0, 200_000, (16384,))
    return Case(TwoTowers(), ((users, items), torch.rand(16384).round()), click_loss)


class Encoder(nn.Module):
    """torch's own encoder, whose batches are as long as their longest row."""

    def __init__(self, width: int = 512, depth: int = 8, vocabulary: int = 30000) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        padded = tokens == 0
        x = self.layers(self.embed(tokens), src_key_padding_mask=padded)
        kept = (~padded)[..., None]
        return self.head((x * kept).sum(1) / kept.sum(1))


def encoder_of_lengths() -> Case:
    def batch(length: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(1, 30000, (64, length))
        ends = torch.randint(length // 2, length + 1, (64, 1))
        return tokens * (torch.arange(length) < ends), torch.randint(0, 2, (64,))

    first, *later = [batch(int(length)) for length in torch.randint(64, 513, (24,))]
    return Case(Encoder(), first, "cross_entropy", tuple(later))


CASES = {  # the slowest to compile first, so that processes beside each other end together
    make.__name__: make
    for make in (
        qwen2, mistral, gemma2, t5, swin, modernbert, efficientnet_v2, convnext,
        encoder_of_lengths, vit, unet, mixer, dit, bert, opt, resnet50, vit_b_16, hand_gpt, gpt2,
        llama, lstm, two_towers,
    )
}  # fmt: skip
