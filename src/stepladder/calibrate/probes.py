"""The probes that `calibrate` times: matmuls, attention, norms, updates, launches.

Shapes are those that models have, on a device of that kind. A product comes with the two of its
backward pass, attention forward and backward, an update with the clipping before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch.nn import functional

from stepladder.data import Batch
from stepladder.model import build
from stepladder.plan import FP32, Plan
from stepladder.seam.operators import foreach_divide_, foreach_norm, scaled_mm
from stepladder.train import Run, climb

from .fit_rates import STEP_MODEL
from .image_probes import (
    COLOURS,
    CONVOLUTIONS,
    CONVOLVED,
    IMAGES,
    channel_work,
    convolution_work,
    group_work,
    pool_work,
)
from .launch_costs import TINY
from .probe import PRECISIONS, Probe, Shapes, Work, backward_of, draw

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
NORMS: Shapes = {"cuda": ((32768, 1024), (16384, 4096)), "cpu": ((512, 384),)}
LOSSES: Shapes = {"cuda": ((8192, 50304),), "cpu": ((512, 2048),)}
PARAMETERS = {"cuda": 2**27, "cpu": 2**22}  # of the update that is timed
# Fewer bits may slow a processor down whatever its products say: a small whole step tells.
STEPPED: dict[str, tuple[str, ...]] = {"cuda": (), "cpu": ("fp32", "bf16")}
STEP = (4, 128)  # rows and tokens
# Blocks of models so small that only their launches count, in each way of running them, at two
# depths; a compiler takes its time, so there they are fewer.
DEPTHS = {"compiled": (1, 3)}
USUAL_DEPTHS = (2, 8)
WAYS = {
    "": "bf16", "pure": "bf16-pure",
    "blocks": "bf16 recompute=blocks", "pure blocks": "bf16-pure recompute=blocks",
    "selective": "bf16 recompute=selective", "pure selective": "bf16-pure recompute=selective",
    "compiled": "bf16 compile=on",
}  # fmt: skip
LATE = "compiled"  # after everything else
ASKED = tuple(way for way in WAYS if way != LATE)
TWICE = ("", "blocks", "selective")  # timed again, later
MOST_FLOPS = {"fp32": 2e12}  # types too slow for the largest shapes
MOST_CONVOLVED = {"fp16": 3, "tf32": 3, "fp32": 3}  # shapes, of types that few convolve in


def probes_of(device: torch.device) -> Iterator[Probe]:
    """What is timed, the most telling first."""
    kind = device.type
    computes = list(PRECISIONS) if kind == "cuda" else ["fp32", "bf16", "fp16"]
    usual = "bf16" if kind == "cuda" else "fp32"  # what runs on it mostly move
    yield from (Probe("stream", usual, (size,)) for size in STREAMS[kind])
    yield Probe("update", "", (PARAMETERS[kind],))
    if kind == "cuda":
        yield from launch_probes(kind)
    yield from (Probe("step", compute, STEP) for compute in STEPPED[kind])
    for compute in computes:
        limit = MOST_FLOPS.get(compute, float("inf"))
        shapes = [s for s in PRODUCTS[kind] if 6.0 * s[0] * s[1] * s[2] <= limit]
        yield from (Probe("product", compute, shape) for shape in shapes)
        for shape in ATTENTIONS[kind] if compute != "fp8" else ():
            yield Probe("attention", compute, shape)
        if compute == computes[0]:  # what most runs need, before other types
            yield from cheap_probes(kind)
            # On a GPU once more: its host is not equally fast at all times.
            yield from launch_probes(kind, TWICE)
        if compute in CONVOLVED[kind]:
            limit = MOST_CONVOLVED.get(compute, len(CONVOLUTIONS[kind]))
            yield from (Probe("convolution", compute, s) for s in CONVOLUTIONS[kind][:limit])
            yield from (Probe("colours", compute, s) for s in COLOURS[kind][:limit])
    if kind == "cuda":
        yield from (Probe("launch", LATE, (depth,)) for depth in DEPTHS[LATE])


def launch_probes(kind: str, ways: tuple[str, ...] = ASKED) -> Iterator[Probe]:
    """On a processor, which asks itself, one way will do."""
    if kind != "cuda":
        yield from (Probe("launch", "", (depth,)) for depth in USUAL_DEPTHS)
        return
    for way, model, depth in product(ways, TINY, USUAL_DEPTHS):
        yield Probe(model, way, (depth,))
    yield from (Probe("ask for an update", "", (depth,)) for depth in USUAL_DEPTHS)


def cheap_probes(kind: str) -> Iterator[Probe]:
    for compute, shape in product(("bf16", "fp32"), NORMS[kind]):
        yield Probe("norm", compute, shape)
        yield Probe("activation", compute, shape)
    yield Probe("widen", "bf16", NORMS[kind][-1])
    for rough, compute in product(("turn", "spread"), ("bf16", "fp32")):
        yield Probe(rough, compute, NORMS[kind][-1])
    for own, shape in product(("channel", "group", "pool"), IMAGES[kind]):
        yield Probe(own, "bf16", shape)
    yield from (
        Probe("loss", compute, shape) for compute in ("bf16", "fp32") for shape in LOSSES[kind]
    )


def matmul_work(probe: Probe, device: torch.device) -> Work:
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
        scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16) for a, b in pairs
    ]


def attention_work(probe: Probe, device: torch.device) -> Work:
    q, k, v = (draw(probe.shape, probe, device).requires_grad_() for _ in range(3))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True).detach()

    def both() -> object:
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(made, (q, k, v), out)

    return both


def stream_work(probe: Probe, device: torch.device) -> Work:
    a, b, c = (draw(probe.shape, probe, device) for _ in range(3))
    return lambda: torch.add(a, b, out=c)


def norm_work(probe: Probe, device: torch.device) -> Work:
    x, weight = draw(probe.shape, probe, device), draw(probe.shape[1:], probe, device)
    return backward_of(lambda x, w: functional.layer_norm(x, w.shape, w), x, weight)


def activation_work(probe: Probe, device: torch.device) -> Work:
    return backward_of(functional.gelu, draw(probe.shape, probe, device))


def widen_work(probe: Probe, device: torch.device) -> Work:
    x = draw(probe.shape, probe, device)
    return lambda: x.float()


def transpose_work(probe: Probe, device: torch.device) -> Work:
    """Rows and heads change places, as around attention."""
    rows, width = probe.shape
    x = draw((rows // 64, 64, width), probe, device)
    return lambda: x.transpose(0, 1).contiguous()


def spread_work(probe: Probe, device: torch.device) -> Work:
    x, bias = draw(probe.shape, probe, device), draw(probe.shape[1:], probe, device)
    return lambda: x + bias


def loss_work(probe: Probe, device: torch.device) -> Work:
    """The loss as a step computes it: in fp32, whatever the logits are."""
    classes = torch.randint(probe.shape[1], probe.shape[:1], device=device)
    logits = draw(probe.shape, probe, device)
    return backward_of(lambda x: functional.cross_entropy(x.float(), classes), logits)


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
        norm = torch.linalg.vector_norm(torch.stack(foreach_norm(gradients)))
        foreach_divide_(gradients, norm.clamp(min=1.0))
        optimizer.step()

    return step


def launch_work(probe: Probe, device: torch.device) -> Work:
    """Forward and backward of a model so small that only asking for its work takes time."""
    plan = Plan.parse(WAYS[probe.compute]) if device.type == "cuda" else Plan(precision=FP32)
    return gradients_work(TINY[probe.kind].format(probe.shape[0]), plan, (1, 16), device)


def update_launch_work(probe: Probe, device: torch.device) -> Work:
    """Everything that a step does after its gradients are there."""
    run, batch = tiny_run(TINY["launch"].format(probe.shape[0]), Plan(), (1, 16), device)
    loss = run.gradients(batch)
    gradients = [(p, p.grad) for p in run.module.parameters()]

    def update() -> None:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        run.update(batch, loss)

    return update


def step_work(probe: Probe, device: torch.device) -> Work:
    """Forward and backward of a small model with everything a step has."""
    plan = Plan(precision=PRECISIONS[probe.compute])
    return gradients_work(STEP_MODEL, plan, probe.shape, device)


def gradients_work(model: str, plan: Plan, shape: tuple[int, ...], device: torch.device) -> Work:
    run, batch = tiny_run(model, plan, shape, device)

    def both() -> None:
        run.gradients(batch)
        run.optimizer.zero_grad(set_to_none=True)

    return both


def tiny_run(
    model: str, plan: Plan, shape: tuple[int, ...], device: torch.device
) -> tuple[Run, Batch]:
    run = climb(build(model), loss="cross_entropy", plan=plan, device=str(device))
    tokens = torch.zeros(shape, dtype=torch.long, device=device)
    return run, Batch.of((tokens, tokens), position=0, size=shape[0])


WORKS: dict[str, Callable[[Probe, torch.device], Work]] = {
    "product": matmul_work,
    "attention": attention_work,
    "stream": stream_work,
    "norm": norm_work,
    "widen": widen_work,
    "turn": transpose_work,
    "spread": spread_work,
    "channel": channel_work,
    "group": group_work,
    "pool": pool_work,
    "convolution": convolution_work,
    "colours": convolution_work,
    "activation": activation_work,
    "loss": loss_work,
    "update": update_work,
    "launch": launch_work,
    "launch llama": launch_work,
    "ask for an update": update_launch_work,
    "step": step_work,
}
