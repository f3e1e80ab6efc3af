"""The head fused with its loss on ranks that cut module, batch or sequence: every loss, gradient
norm and parameter is that of a plain torch loop on one device."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import stepladder as sl
from stepladder.data import IGNORED
from stepladder.kernels import fused_head
from stepladder.model import build
from tests.ranks import run
from tests.soak import soak_after

WORDS = 32771  # fused from 32,768 on; no number of ranks divides it
BUILT = f"llama:layers=4,hidden=16,heads=4,kv_heads=4,vocab={WORDS},sequence=8"
SGD, ADAMW = "sgd lr=0.5 clip=none", "adamw lr=1e-2 wd=0.1 clip=1"
LAYOUTS = [
    "zero3 shard=2",
    "tensor=2",
    "pipeline=2",
    "context=2",
    "zero2 shard=2 micro=1",
    "ddp replicate=2 micro=1",
    "zero3 shard=2 tensor=2",
    "hsdp shard=2 replicate=2 micro=2",
    "tensor=4",
    "ddp replicate=2 tensor=2",
    "pipeline=2 schedule=zero-bubble",
    "pipeline=2 tensor=2",
    "zero3 shard=2 pipeline=2",
    "zero1 shard=2 pipeline=2",
    "zero3 shard=2 context=2",
    "context=2 tensor=2",
    "pipeline=2 context=2",
    "zero3 shard=2 recompute=blocks",
]


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, hidden):
        return hidden + self.down(functional.silu(self.up(self.norm(hidden))))


class Language(nn.Module):
    """Somebody's module: nobody here knows that its output is its head's."""

    def __init__(self, tied: bool = True, cap: float | None = None) -> None:
        super().__init__()
        self.embed, self.cap = nn.Embedding(WORDS, 16), cap
        self.layers = nn.ModuleList(Mixing() for _ in range(4))
        self.head = nn.Linear(16, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.head(hidden)
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


MODULES = {
    "built-in": lambda: build(BUILT),
    "foreign": Language,
    "untied": lambda: Language(tied=False),
    "capped": lambda: Language(cap=3.0),
}


def module_of(kind: str) -> nn.Module:
    torch.manual_seed(3)
    module = MODULES[kind]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, WORDS, (8, 8), generator=draw)
    targets = tokens.roll(-1, 1)
    targets[0, step + 1 :] = IGNORED  # ranks have unequally many
    targets[3] = IGNORED
    return tokens, targets


def plainly(kind: str, optimizer: str):
    """Losses, gradient norms and parameters of a plain loop; nothing here is stepladder's."""
    module = module_of(kind)
    adam = optimizer == ADAMW
    kind_of = torch.optim.AdamW if adam else torch.optim.SGD
    settings = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.95)} if adam else {"lr": 0.5}
    update = kind_of(module.parameters(), **settings)
    losses, norms = [], []
    for step in range(3):
        tokens, targets = batch(step)
        logits = module(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        update.zero_grad()
        loss.backward()
        limit = 1.0 if adam else float("inf")
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), limit).item())
        update.step()
        losses.append(loss.item())
    names = module.named_parameters(remove_duplicate=False)  # a last stage has the head's alone
    return losses, norms, {name: p.detach() for name, p in names}


def on_rank(kind: str, plan: str, optimizer: str):
    calls, fused = [], fused_head.linear_cross_entropy

    def counted(*args, **options):
        calls.append(torch.is_grad_enabled())
        return fused(*args, **options)

    module = module_of(kind)
    with patch.object(fused_head, "linear_cross_entropy", counted):
        made = sl.climb(
            module, loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu",
            sample=batch(0),
        )  # fmt: skip
        reports = [made.step(batch(step), rows="global").read() for step in range(3)]
        mean = made.evaluate([batch(5)], rows="global")
    own = {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in made.module.named_parameters()
    }
    found = [one.loss for one in reports], [one.grad_norm for one in reports], own
    return *found, mean, calls, list(made.events)


def check(kind: str, layout: str, optimizer: str):
    ranks = 4 if layout.count("=2") - layout.count("micro=2") == 2 or "=4" in layout else 2
    losses, norms, expected = plainly(kind, optimizer)
    found = run(on_rank, ranks, kind, f"fp32 {layout} kernels=on", optimizer)
    for one in found:
        assert one[0] == pytest.approx(losses, rel=1e-5)
        assert one[1] == pytest.approx(norms, rel=1e-4)
        for name, value in one[2].items():
            off = (value - expected[name]).norm() / expected[name].norm()
            assert off < 2e-5, (name, off)
    assert set().union(*(one[2] for one in found)) >= set(dict(module_of(kind).named_parameters()))
    plain = module_of(kind)
    plain.load_state_dict(expected)
    with torch.no_grad():
        tokens, targets = batch(5)
        wanted = functional.cross_entropy(plain(tokens).flatten(0, 1), targets.flatten()).item()
    assert found[0][3] == pytest.approx(wanted, rel=1e-4)
    return found


CASES = [
    *[("built-in", layout, SGD) for layout in LAYOUTS[:5]],
    *[("foreign", layout, ADAMW) for layout in LAYOUTS[:3]],
    *[("built-in", layout, SGD) for layout in LAYOUTS[5:]],
    *[("foreign", layout, SGD) for layout in LAYOUTS[3:]],
    *[(kind, layout, ADAMW) for kind in ("built-in", "untied") for layout in LAYOUTS],
]


@pytest.mark.parametrize(("kind", "layout", "optimizer"), soak_after(CASES, gate=8))
def test_ranks_train_as_a_plain_loop_and_never_make_logits(kind, layout, optimizer):
    found = check(kind, layout, optimizer)
    ends = [one for one in found if one[4]]
    stages = 2 if "pipeline" in layout else 1
    assert len(ends) == len(found) // stages, "which ranks fuse"
    for one in ends:
        assert True in one[4] and False in one[4], "in training and in evaluation"


@pytest.mark.parametrize("layout", soak_after(LAYOUTS[:4], gate=3))
def test_a_module_that_caps_its_logits_keeps_its_own_loss_on_ranks(layout):
    found = check("capped", layout, SGD)
    assert not any(one[4] for one in found)
    said = "kernels: Language changes its head's output, and keeps its own loss"
    assert found[0][5].count(said) == 1, found[0][5]
