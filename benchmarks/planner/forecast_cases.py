"""The cases on which the planner's memory and time are held against reality, on any device.

A case is a model and a plan. Each model has two sizes: one that a laptop's processor runs in a
second, yet wide and long enough that fixed overheads do not carry the figure, and one for a GPU.
Whoever measures calls `measure_case`, whoever forecasts `forecast_case`; both see the same plan.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.data import Batch
from stepladder.hardware import Cluster
from stepladder.measure import measure_memory
from stepladder.model import build, describe
from stepladder.model.builtin.resnet import ResNet
from stepladder.model.builtin.vit import ViT
from stepladder.plan import Plan
from stepladder.planner import forecast
from stepladder.record import Calibration, Forecast, Memory
from stepladder.train import climb
from stepladder.workload import Facts
from stepladder.world import synchronize

ROWS = {"tokens": {"cpu": 1, "cuda": 2}, "images": {"cpu": 2, "cuda": 16}}  # per row a plan names


class Odd(nn.Module):
    """No list of blocks, a weight used twice, a branch that training never takes."""

    def __init__(self, width: int, image: int, classes: int) -> None:
        super().__init__()
        self.look = nn.Conv2d(3, width // 4, 5, 2, padding=2)
        self.norm = nn.GroupNorm(4, width // 4)
        self.read = nn.Linear(width // 4 * 16 * 16, width)
        self.turn = nn.Linear(width, width)
        self.never = nn.Linear(width, width)
        self.turn_back = nn.Linear(width, width)
        self.turn_back.weight = self.turn.weight
        self.answer = nn.Linear(width, classes)
        self.image = image

    def forward(self, images: Tensor) -> Tensor:
        seen = functional.silu(self.norm(self.look(images)))
        hidden = self.read(functional.adaptive_avg_pool2d(seen, 16).flatten(1))
        hidden = hidden + torch.tanh(self.turn_back(functional.gelu(self.turn(hidden))))
        if not self.training:
            hidden = self.never(hidden)
        return self.answer(hidden)


def hugging_llama(**sizes: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))


def hugging_gpt2(**sizes: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, use_cache=False))


@dataclass(frozen=True, slots=True)
class Model:
    """A model in one size, and what it reads."""

    make: Callable[[], nn.Module]  # on the default device
    kind: str  # "tokens" or "images"
    size: int  # of a sample: its length, or its side in pixels
    vocab: int
    named: bool = False  # inputs go by name, as Hugging Face models want them

    def batch(self, rows: int, seed: int = 0) -> Batch:
        draw = torch.Generator().manual_seed(seed)
        if self.kind == "images":
            images = torch.randn(rows, 3, self.size, self.size, generator=draw)
            classes = torch.randint(0, self.vocab, (rows,), generator=draw)
            return Batch.of((images, classes), position=0, size=rows)
        tokens = torch.randint(0, self.vocab, (rows, self.size), generator=draw)
        inputs: Any = {"input_ids": tokens} if self.named else tokens
        return Batch.of((inputs, tokens.roll(-1, 1)), position=0, size=rows)

    def make_on(self, device: str) -> nn.Module:
        with torch.device(device):
            return self.make()


def built(text: str) -> Callable[[], nn.Module]:
    return partial(build, text)


def tokens(make: Callable[[], nn.Module], size: int, vocab: int, *, named: bool = False) -> Model:
    return Model(make, "tokens", size, vocab, named)


SMALL_LLAMA = "llama:layers=4,hidden=256,heads=8,kv_heads=4,ffn=768,vocab=2048,sequence=256"
LARGE_LLAMA = "llama:layers=4,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=32000,sequence=2048"
HUGGING_SMALL = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 768, "vocab_size": 2048,
    "max_position_embeddings": 256,
}  # fmt: skip
HUGGING_LARGE = {
    "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
    "max_position_embeddings": 1024,
}  # fmt: skip

MODELS: dict[str, dict[str, Model]] = {
    "gpt": {
        "cpu": tokens(built("gpt:layers=4,hidden=256,heads=4,vocab=2048,sequence=256"), 256, 2048),
        "cuda": tokens(built("gpt2"), 1024, 50304),
    },
    "llama": {
        "cpu": tokens(built(SMALL_LLAMA), 256, 2048),
        "cuda": tokens(built(LARGE_LLAMA), 2048, 32000),
    },
    "resnet": {
        "cpu": Model(
            partial(ResNet, depths=(2, 2, 2, 2), width=32, bottleneck=True, classes=100),
            "images", 96, 100,
        ),
        "cuda": Model(built("resnet50"), "images", 224, 1000),
    },
    "vit": {
        "cpu": Model(
            partial(ViT, image=96, patch=8, hidden=256, layers=4, heads=4, classes=100),
            "images", 96, 100,
        ),
        "cuda": Model(built("vit-base"), "images", 224, 1000),
    },
    "hugging-llama": {
        "cpu": tokens(partial(hugging_llama, **HUGGING_SMALL), 256, 2048, named=True),
        "cuda": tokens(partial(hugging_llama, **HUGGING_LARGE), 1024, 32000, named=True),
    },
    "hugging-gpt2": {
        "cpu": tokens(
            partial(hugging_gpt2, n_layer=4, n_embd=256, n_head=4, n_positions=256,
                    vocab_size=2048), 256, 2048, named=True,
        ),
        "cuda": tokens(
            partial(hugging_gpt2, n_layer=12, n_embd=768, n_head=12, vocab_size=50304),
            1024, 50304, named=True,
        ),
    },
    "odd": {
        "cpu": Model(partial(Odd, 512, 96, 100), "images", 96, 100),
        "cuda": Model(partial(Odd, 2048, 224, 1000), "images", 224, 1000),
    },
}  # fmt: skip

PLANS = (  # precision and recomputation, rows of a pass, passes
    ("fp32", 4, 2),
    ("fp32 recompute=blocks", 8, 1),
    ("fp32 recompute=selective", 4, 2),
    ("bf16", 4, 2),
    ("bf16", 8, 1),
    ("bf16 recompute=blocks", 8, 2),
    ("bf16 recompute=selective", 8, 1),
    ("bf16 recompute=every:2", 4, 2),
    ("bf16-pure", 8, 1),
    ("bf16-pure recompute=every:2", 4, 2),
    ("fp16", 4, 1),
    ("fp16 recompute=selective", 4, 2),
)
KERNELS = (("bf16 kernels=on", 8, 1), ("bf16-master kernels=on", 4, 2))  # on a GPU alone
COMPILED = (  # measured on a GPU alone: only there does the compiler pay
    ("bf16 compile=on", 8, 1),
    ("bf16 compile=on recompute=blocks", 8, 1),
    ("bf16-pure compile=on", 4, 2),
)


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    words: str  # the plan without its batch
    rows: int  # of one pass, before the device's factor
    passes: int

    def on(self, device: str) -> Model:
        return MODELS[self.model][device]

    def plan(self, device: str) -> Plan:
        micro = self.rows * ROWS[self.on(device).kind][device]
        return Plan.parse(f"{self.words} micro={micro} batch={micro * self.passes}")

    def __str__(self) -> str:
        return f"{self.model}: {self.words} rows={self.rows}x{self.passes}"


def cases(device: str) -> list[Case]:
    """Every case for a device type; a module without blocks has nothing to recompute."""
    plans = PLANS + (KERNELS + COMPILED if device == "cuda" else ())
    every = [Case(model, *plan) for model, plan in product(MODELS, plans)]
    return [case for case in every if runs(case, device)]


def runs(case: Case, device: str) -> bool:
    if device == "cpu" and case.model in ("resnet", "odd") and "fp16" in case.words:
        return False  # torch convolves in fp16 on a processor, but half a minute a step
    if device == "cpu" and case.model == "hugging-gpt2" and case.passes == 2:
        return False  # the other Hugging Face model has them all, and minutes count
    if "kernels" in case.words and case.on(device).kind == "images":
        return False  # calibration times convolutions in torch's own order of channels
    return case.model != "odd" or "recompute" not in case.words


CASES = cases("cpu")
GPU_CASES = cases("cuda")


@dataclass(frozen=True, slots=True)
class Measured:
    memory: Memory
    step_seconds: float


def measure_case(case: Case, device: str, *, warmup: int = 1, steps: int = 1) -> Measured:
    """Train the case a few steps: the median step's seconds, and one more step's memory."""
    model, plan = case.on(device), case.plan(device)
    torch.manual_seed(0)
    run = climb(model.make_on(device), loss="cross_entropy", plan=plan, device=device)
    batch = model.batch(plan.batch.sequences or 1).to(run.world.device)
    seconds = []
    for _ in range(warmup + steps):
        synchronize(run.world.device)
        began = time.perf_counter()
        run.step(batch)
        synchronize(run.world.device)
        seconds.append(time.perf_counter() - began)
    memory = measure_memory(
        lambda: run.step(batch), run.module, run.optimizer, run.world.device, vocab=model.vocab
    )
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return Measured(memory, statistics.median(seconds[warmup:]) if steps else math.nan)


def facts_case(case: Case, device: str) -> Facts:
    return facts_of(case.model, device)


@cache
def facts_of(name: str, device: str) -> Facts:
    """The facts of a model, traced where it takes no memory."""
    model = MODELS[name][device]
    return describe(model.make_on("meta"), sample=model.batch(1), device=device)


def forecast_case(case: Case, cluster: Cluster, calibration: Calibration | None = None) -> Forecast:
    """What the planner says of the case on one device of a cluster."""
    device = "cpu" if cluster.device.is_cpu else "cuda"
    return forecast(facts_case(case, device), case.plan(device), cluster, calibration)
