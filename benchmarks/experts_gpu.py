"""A mixture of experts on one GPU: our built-in one against Hugging Face's, eager and grouped.

    python benchmarks/experts_gpu.py --rounds 2 --steps 3 --profile --out FILE.json

The model has OLMoE's widths and layers (hidden 2048, 16 layers, 8 experts a token of width 1024)
and, by default, 32 experts: 1.3 B active of 3.8 B parameters, so that all arms are in memory at
once and take turns. All start from the same weights, in bf16 with AdamW's state in bf16, and learn
from the same random tokens. "hf eager" loops over experts, "hf grouped" is
experts_implementation="grouped_mm"; both are compiled layer by layer, and the head with its loss,
as a good hand-written loop would have it. They leave the router's losses out; ours has both.
Tokens a second are by CUDA events; MFU counts the active parameters' FLOPs alone.
--device cpu --tiny tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepladder as sl
from stepladder.model.builtin.grouped_product import grouped_loop, grouped_product, has_kernel
from stepladder.workload import Shape, facts_of_shape

LAYERS, HIDDEN, HEADS, WIDTH, ACTIVE, VOCAB = 16, 2048, 16, 1024, 8, 50304
THETA, RATE = 10_000.0, 1e-4
PEAKS = {"H200": 989e12, "H100": 989e12}  # dense bf16 FLOP/s, by the datasheets of the SXM boards
Step = Callable[[Tensor, Tensor], Tensor]
NAMES = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate": "mlp.router",
}  # fmt: skip


def shape_of(options: argparse.Namespace) -> Shape:
    shape = Shape(
        "llama", LAYERS, HIDDEN, HEADS, HEADS, WIDTH, VOCAB, options.sequence,
        experts=options.experts, active=ACTIVE, raw=1, extra=2 * HIDDEN,
    )  # fmt: skip
    tiny = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 32, "vocab": 128}
    return replace(shape, **tiny, experts=8, active=2, extra=128) if options.tiny else shape


def make_hf(shape: Shape, form: str, device: str) -> nn.Module:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = OlmoeConfig(
        num_hidden_layers=shape.layers, hidden_size=shape.hidden, intermediate_size=shape.ffn,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocab, max_position_embeddings=shape.sequence,
        num_experts=shape.experts, num_experts_per_tok=shape.active, norm_topk_prob=False,
        rope_theta=THETA, use_cache=False, tie_word_embeddings=False, pad_token_id=1,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    config._experts_implementation = form
    with torch.device(device):
        model = OlmoeForCausalLM(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(0.0, 0.02)
    return model.to(torch.bfloat16).train()


def hf_step(shape: Shape, form: str, device: str, compiled: bool) -> Step:
    """The loop a user would write around it."""
    model = make_hf(shape, form, device)

    def head_loss(hidden: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model.lm_head(hidden).float().flatten(0, 1), targets.flatten())

    if compiled:
        head_loss = torch.compile(head_loss)
        for layer in model.model.layers:
            layer.forward = torch.compile(layer.forward)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = head_loss(model.model(input_ids=tokens).last_hidden_state, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def our_step(shape: Shape, plan: str, device: str) -> Step:
    model = sl.build(shape, device="meta", theta=THETA)
    model.to_empty(device=device)
    for part in model.modules():
        if hasattr(part, "reset_buffers"):
            part.reset_buffers()
    copy_weights(make_hf(shape, "eager", device), model)
    run = sl.climb(
        model, loss="cross_entropy", optimizer=f"adamw lr={RATE} clip=1 wd=0.01", plan=plan,
        device=device,
    )  # fmt: skip

    def step(tokens: Tensor, targets: Tensor) -> Any:
        return run.step((tokens, targets))

    return step


@torch.no_grad()
def copy_weights(theirs: nn.Module, ours: nn.Module) -> None:
    """The same weights under our names, in fp32."""
    given = dict(theirs.named_parameters())
    mine = dict(ours.named_parameters())
    mine["embedding.weight"].copy_(given["model.embed_tokens.weight"])
    mine["norm.weight"].copy_(given["model.norm.weight"])
    mine["head.weight"].copy_(given["lm_head.weight"])
    for layer in range(len(ours.blocks)):
        there, here = f"model.layers.{layer}", f"blocks.{layer}"
        for one, other in NAMES.items():
            mine[f"{here}.{other}.weight"].copy_(given[f"{there}.{one}.weight"])
        gate_up = mine[f"{here}.mlp.experts.gate_up"]
        gate_up.copy_(given[f"{there}.mlp.experts.gate_up_proj"].view(gate_up.shape))
        mine[f"{here}.mlp.experts.down"].copy_(given[f"{there}.mlp.experts.down_proj"])


def check_product(device: str) -> dict[str, Any]:
    """Whether torch's grouped product and the loop over groups give the same, and gradients too."""
    torch.manual_seed(1)
    kind = torch.bfloat16
    rows = torch.randn(1003, 256, device=device, dtype=kind, requires_grad=True)
    matrices = torch.randn(6, 512, 256, device=device, dtype=kind, requires_grad=True)
    ends = torch.tensor([100, 100, 331, 700, 777, 1003], dtype=torch.int32, device=device)
    weigh = torch.randn(1003, 512, device=device, dtype=kind)
    found = {"kernel": has_kernel(rows, matrices.mT)}
    results = []
    for product in (grouped_product, grouped_loop):
        out = product(rows, matrices.mT, ends)
        results.append((out, *torch.autograd.grad((out * weigh).sum(), (rows, matrices))))
    names = ("output", "of_rows", "of_matrices")
    for name, one, other in zip(names, *results, strict=True):
        error = (one.float() - other.float()).norm() / other.float().norm()
        found[name] = error.item()
    return found


class Clock:
    """Seconds of a step: of the device's events where there are some."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def time(self, step: Step, batch: tuple[Tensor, Tensor], steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            if not self.cuda:
                began = time.perf_counter()
                step(*batch)
                found.append(time.perf_counter() - began)
                continue
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            step(*batch)
            last.record()
            last.synchronize()
            found.append(first.elapsed_time(last) / 1e3)
        return found


def read(loss: Any) -> float:
    return float(loss.loss if hasattr(loss, "loss") else loss)


def profile(step: Step, batch: tuple[Tensor, Tensor]) -> list[dict[str, Any]]:
    """The kernels that a step spends most time in."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        step(*batch)
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[:30]
    return [
        {"kernel": row.key[:120], "ms": row.self_device_time_total / 1e3, "calls": row.count}
        for row in rows
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--arms", default="ours,hf grouped,hf eager")
    parser.add_argument("--plan", default="bf16-pure compile=on kernels=on")
    parser.add_argument("--seconds", type=float, default=135, help="no arm is begun after these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options, began = parse(), time.monotonic()
    options.sequence = 16 if options.tiny else options.sequence
    shape, cuda = shape_of(options), options.device == "cuda"
    batch = make_batch(shape, options)
    flops = facts_of_shape(shape, options.sequence).flops_per_token
    result: dict[str, Any] = {
        "shape": str(shape), "parameters": shape.parameters, "active": shape.active_parameters,
        "rows": options.rows, "flops_per_token": flops, "plan": options.plan,
        "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name() if cuda else platform.machine(),
        "grouped product against a loop": check_product(options.device), "arms": {},
    }  # fmt: skip
    keep(result, options)
    makers: dict[str, Callable[[], Step]] = {
        "ours": lambda: our_step(shape, options.plan, options.device),
        "hf grouped": lambda: hf_step(shape, "grouped_mm", options.device, not options.no_compile),
        "hf eager": lambda: hf_step(shape, "eager", options.device, not options.no_compile),
    }
    steps: dict[str, Step] = {}
    for name in options.arms.split(","):
        if time.monotonic() - began > options.seconds * 0.75:
            result["arms"][name] = {"error": "no time was left"}
            continue
        row = result["arms"][name] = warm(name, makers[name], batch, steps)
        print(name, row, f"at {time.monotonic() - began:.0f} s", flush=True)
        keep(result, options)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            if not times[name] or time.monotonic() - began < options.seconds:
                times[name] += Clock(options.device).time(step, batch, options.steps)
        report(result, times, batch[0].numel(), flops, options)
    if options.profile and cuda and "ours" in steps:
        result["profile of ours"] = profile(steps["ours"], batch)
        keep(result, options)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)


def make_batch(shape: Shape, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, shape.vocab, (options.rows, shape.sequence + 1), generator=draw)
    tokens = tokens.to(options.device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def warm(
    name: str, make: Callable[[], Step], batch: tuple[Tensor, Tensor], steps: dict[str, Step]
) -> dict[str, Any]:
    """Build an arm and take its first steps, in which it compiles."""
    began = time.monotonic()
    try:
        step = make()
        gc.collect()
        losses = [read(step(*batch)) for _ in range(3)]
        steps[name] = step
        return {"warm_seconds": round(time.monotonic() - began, 1), "losses": losses}
    except Exception as error:  # another arm's numbers are worth having
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"error": f"{type(error).__name__}: {error}"[:600]}


def report(
    result: dict[str, Any], times: dict[str, list[float]], tokens: int, flops: float, options: Any
) -> None:
    peak = next((rate for word, rate in PEAKS.items() if word in result["machine"]), None)
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        row = result["arms"][name]
        row |= {
            "ms": [round(1e3 * one, 2) for one in seconds],
            "tokens_per_second": tokens / middle,
        }
        row["mfu"] = tokens / middle * flops / peak if peak else None
    ours = result["arms"].get("ours", {}).get("tokens_per_second")
    for name, row in result["arms"].items():
        if ours and name != "ours" and "tokens_per_second" in row:
            result[f"ours / {name}"] = ours / row["tokens_per_second"]
    keep(result, options)
    print(json.dumps({k: v for k, v in result.items() if "profile" not in k}, indent=1), flush=True)


def keep(result: dict[str, Any], options: argparse.Namespace) -> None:
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
