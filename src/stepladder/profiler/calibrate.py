"""What this machine really does: the rates a forecast is made of, timed one by one.

Every probe is work of the kind a training step is made of, in shapes that models have. A product is
timed with the two of its backward pass; attention forward and backward; an update with the clipping
before it. Each is warmed up, repeated while its share of the time lasts, and its median counts. The
timings themselves are kept, and two numbers a compute type are fitted to them: the rate of large
products, and how often operands cross to memory at the edges (see planner.speed).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch.nn import functional

from stepladder.data import Batch
from stepladder.hardware import recognise
from stepladder.model import build
from stepladder.plan import BF16, FP8, FP16, FP32, TF32, Plan, Precision
from stepladder.record import Calibration, Timing
from stepladder.rungs import is_out_of_memory, matrix_units
from stepladder.train import climb
from stepladder.world import limit_bytes, synchronize

from .efficiency import TINY, fit

Progress = Callable[[str, float], None]  # what is being timed, and the share that is done
Work = Callable[[], object]
Shapes = dict[str, tuple[tuple[int, ...], ...]]  # by kind of device

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = {p.compute: p for p in (BF16, FP16, TF32, FP32, FP8)}
PRODUCTS: Shapes = {  # rows, inner, columns
    "cuda": (
        (8192, 768, 3072), (16384, 768, 768), (8192, 768, 50304), (2048, 1024, 1024),
        (4096, 2048, 2048), (16384, 2048, 2048), (16384, 2048, 8192), (8192, 4096, 4096),
        (8192, 4096, 14336), (4096, 8192, 8192),
    ),
    "cpu": (
        (256, 128, 512), (512, 384, 384), (512, 384, 1536), (1024, 512, 2048), (512, 1024, 1024),
    ),
}  # fmt: skip
ATTENTIONS: Shapes = {  # samples, heads, length, head width
    "cuda": ((16, 12, 1024, 64), (4, 32, 2048, 64), (2, 32, 4096, 128)),
    "cpu": ((4, 4, 256, 32), (2, 8, 256, 64)),
}
STREAMS = {"cuda": (2**28, 2**24), "cpu": (2**24, 2**20)}  # elements: beyond any cache, and mid
NORMS: Shapes = {"cuda": ((16384, 1024), (8192, 4096)), "cpu": ((512, 384),)}
LOSSES: Shapes = {"cuda": ((8192, 50304),), "cpu": ((512, 2048),)}
PARAMETERS = {"cuda": 2**27, "cpu": 2**22}  # of the update that is timed
DEPTHS = (2, 8)  # blocks of two models so small that only their launches count
EACH_SECONDS = 0.2
WARM_SECONDS = 1.0  # until the chip is as hot as training makes it
MOST_FLOPS = {"fp32": 2e12}  # types too slow for the largest shapes


@dataclass(frozen=True, slots=True)
class Probe:
    kind: str
    compute: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.compute} {'×'.join(map(str, self.shape))}".replace("  ", " ")


def calibrate(
    device: torch.device, budget_seconds: float = 90.0, progress: Progress | None = None
) -> Calibration:
    """Time this device; what does not fit the budget, or cannot run here, stays unknown."""
    began, probes = time.monotonic(), list(probes_of(device))
    context = context_bytes(device)
    warm_up(device)
    each = min(EACH_SECONDS, budget_seconds / (2 * len(probes)))
    timings: list[Timing] = []
    for index, probe in enumerate(probes):
        if time.monotonic() - began > budget_seconds:
            break
        if progress:
            progress(str(probe), index / len(probes))
        seconds = attempt(probe, device, each)
        if seconds is not None:
            timings.append(Timing(probe.kind, probe.compute, probe.shape, seconds))
    release(device)
    return fit(device_name(device), timings, context)


def probes_of(device: torch.device) -> Iterator[Probe]:
    """What is timed, the most telling first."""
    kind = device.type
    computes = list(PRECISIONS) if kind == "cuda" else ["fp32", "bf16", "fp16"]
    usual = "bf16" if kind == "cuda" else "fp32"  # what runs on it mostly move
    yield from (Probe("stream", usual, (size,)) for size in STREAMS[kind])
    yield Probe("update", "", (PARAMETERS[kind],))
    yield from (Probe("launch", "", (depth,)) for depth in DEPTHS)
    for compute in computes:
        limit = MOST_FLOPS.get(compute, float("inf"))
        shapes = [s for s in PRODUCTS[kind] if 6.0 * s[0] * s[1] * s[2] <= limit]
        yield from (Probe("product", compute, shape) for shape in shapes)
        for shape in ATTENTIONS[kind] if compute != "fp8" else ():
            yield Probe("attention", compute, shape)
            yield Probe("attention forward", compute, shape)
    for compute, shape in product(("bf16", "fp32"), NORMS[kind]):
        yield Probe("norm", compute, shape)
        yield Probe("activation", compute, shape)
    yield from (
        Probe("loss", compute, shape) for compute in ("bf16", "fp32") for shape in LOSSES[kind]
    )


def attempt(probe: Probe, device: torch.device, seconds: float) -> float | None:
    """Seconds of one probe; None where this device or this torch cannot do it."""
    try:
        with matrix_units(PRECISIONS.get(probe.compute, FP32), device):
            return median_seconds(WORKS[probe.kind](probe, device), device, seconds)
    except Exception as error:  # what cannot be timed here is unknown, which is an answer
        if is_out_of_memory(error):
            release(device)
        return None


def median_seconds(work: Work, device: torch.device, seconds: float) -> float:
    """The median time of one call, on a device whose queue never empties."""
    one = timed(work, device, 1, times=2)
    repeats = max(1, round(0.01 / max(one, 1e-7)))  # 10 ms between two readings of the clock
    runs, began = [timed(work, device, repeats)], time.monotonic()
    while time.monotonic() - began < seconds:
        runs.append(timed(work, device, repeats))
    return statistics.median(runs)


def timed(work: Work, device: torch.device, repeats: int, *, times: int = 1) -> float:
    spent = 0.0
    for _ in range(times):
        synchronize(device)
        began = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        spent = (time.perf_counter() - began) / repeats
    return spent


def product_work(probe: Probe, device: torch.device) -> Work:
    """A product and the two of its backward pass."""
    rows, inner, columns = probe.shape
    if probe.compute == "fp8":
        return eight_bit_work(rows, inner, columns, device)
    x, w, dy = (draw(s, probe, device) for s in ((rows, inner), (columns, inner), (rows, columns)))
    return lambda: (x @ w.T, dy @ w, dy.T @ x)


def eight_bit_work(rows: int, inner: int, columns: int, device: torch.device) -> Work:
    one = torch.ones((), device=device)

    def eight(a: int, b: int) -> torch.Tensor:
        return torch.randn(a, b, device=device).to(torch.float8_e4m3fn)

    pairs = [
        (eight(a, k), eight(b, k).T)
        for a, b, k in ((rows, columns, inner), (rows, inner, columns), (columns, inner, rows))
    ]
    return lambda: [
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16) for a, b in pairs
    ]


def attention_work(probe: Probe, device: torch.device) -> Work:
    q, k, v = (draw(probe.shape, probe, device).requires_grad_() for _ in range(3))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).detach()

    def both() -> object:
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(made, (q, k, v), out)

    return both


def attention_forward_work(probe: Probe, device: torch.device) -> Work:
    q, k, v = (draw(probe.shape, probe, device) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def stream_work(probe: Probe, device: torch.device) -> Work:
    a, b, c = (draw(probe.shape, probe, device) for _ in range(3))
    return lambda: torch.add(a, b, out=c)


def norm_work(probe: Probe, device: torch.device) -> Work:
    x, weight = draw(probe.shape, probe, device), draw(probe.shape[1:], probe, device)
    return backward_of(lambda x, w: functional.layer_norm(x, w.shape, w), x, weight)


def activation_work(probe: Probe, device: torch.device) -> Work:
    return backward_of(functional.gelu, draw(probe.shape, probe, device))


def loss_work(probe: Probe, device: torch.device) -> Work:
    """The loss as a step computes it: in fp32, whatever the logits are."""
    classes = torch.randint(probe.shape[1], probe.shape[:1], device=device)
    logits = draw(probe.shape, probe, device)
    return backward_of(lambda x: functional.cross_entropy(x.float(), classes), logits)


def backward_of(function: Callable[..., torch.Tensor], *leaves: torch.Tensor) -> Work:
    asked = [leaf.requires_grad_() for leaf in leaves]
    dout = torch.ones_like(function(*asked))
    return lambda: torch.autograd.grad(function(*asked), asked, dout)


def update_work(probe: Probe, device: torch.device) -> Work:
    """The engine's own update: norms, clipping, fused AdamW."""
    count = 16
    module = torch.nn.ParameterList(
        torch.zeros(probe.shape[0] // count, device=device) for _ in range(count)
    )
    for parameter in module:
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer = torch.optim.AdamW(module, fused=True)

    def step() -> None:
        gradients = [p.grad for p in module if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_div_(gradients, norm.clamp(min=1.0))
        optimizer.step()

    return step


def launch_work(probe: Probe, device: torch.device) -> Work:
    """Forward and backward of a model so small that only asking for its work takes time."""
    plan = Plan(precision=BF16 if device.type == "cuda" else FP32)
    module = build(TINY.format(probe.shape[0]))
    run = climb(module, loss="cross_entropy", plan=plan, device=str(device))
    tokens = torch.zeros(1, 16, dtype=torch.long, device=device)
    batch = Batch.of((tokens, tokens), position=0, size=1)

    def both() -> None:
        run.gradients(batch)
        run.optimizer.zero_grad(set_to_none=True)

    return both


WORKS: dict[str, Callable[[Probe, torch.device], Work]] = {
    "product": product_work,
    "attention": attention_work,
    "attention forward": attention_forward_work,
    "stream": stream_work,
    "norm": norm_work,
    "activation": activation_work,
    "loss": loss_work,
    "update": update_work,
    "launch": launch_work,
}


def draw(shape: Sequence[int], probe: Probe, device: torch.device) -> torch.Tensor:
    """Random numbers: zeros would spare the chip the power that real ones cost."""
    precision: Precision = PRECISIONS[probe.compute]
    return torch.randn(tuple(shape), device=device, dtype=TYPES[precision.work])


def warm_up(device: torch.device) -> None:
    if device.type != "cuda":
        return
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    median_seconds(lambda: x @ x, device, WARM_SECONDS)


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def context_bytes(device: torch.device) -> int | None:
    """What the device lost to this process before it held a tensor of ours."""
    if device.type != "cuda":
        return None
    x = torch.randn(256, 256, device=device, dtype=torch.bfloat16)
    (x @ x).sum().item()  # loads the kernels and libraries that every run loads
    free, total = torch.cuda.mem_get_info(device)
    return max(total - free - torch.cuda.memory_reserved(device), 0)


def device_name(device: torch.device) -> str:
    """The device table's name for it, or its own where the table has none."""
    if device.type != "cuda":
        return "CPU"
    shown = torch.cuda.get_device_name(device)
    known = recognise(shown, limit_bytes(device))
    return known.name if known else shown
