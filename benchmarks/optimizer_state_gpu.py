"""Masters and moments in 14, 10 and 7 bytes a parameter on a GPU: bytes, update time, bits, 8B.

`--only update` builds runs and counts their bytes, holds the bits of state=14 against those of
bf16-master after 30 updates, and times updates of a Llama 1B's parameters as CUDA graphs beside
torch's fused AdamW in float32. `--only large` trains a Llama 8B's shape at 4,096 tokens, with each
plan of `--plans "PLAN: rows; PLAN: rows"`; rows that FILE.json has of other plans stay.
Run: PYTHONPATH=src python3 benchmarks/optimizer_state_gpu.py [--only update|large] --out FILE.json
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.measure.training_state import measure_state
from stepladder.model import build
from stepladder.train import as_batch, climb
from stepladder.train.optimizer.compact.compact_adam import CompactAdam, Identity, state_of
from stepladder.train.optimizer.master_weights import MasterAdam

SIZES = (16, 14, 10, 7)
ADAM: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
MODEL = "llama:layers=4,hidden=1024,heads=16,kv_heads=4,ffn=4096,vocab=32000,sequence=256"
BLOCK = [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048), (8192, 2048), (8192, 2048)]
SHAPES = [(128256, 2048), (2048,), *16 * [*BLOCK, (2048, 8192), (2048,), (2048,)]]  # Llama 1B
UPDATES, ROUNDS, REPEATS = 30, 7, 10
LARGE, SEQUENCE, STEPS = "llama3-8b", 4096, 3
PLANS = "bf16-pure: 7; bf16-pure: 8; bf16-master state=7: 8; bf16-master state=7 update=backward: 8"
COMPILED = "recompute=selective compile=on kernels=on"
GIB = 2**30


def plan_of(size: int) -> str:
    return "bf16-master" if size == 16 else f"bf16-master state={size}"


def count_bytes(device: str) -> Iterator[dict[str, Any]]:
    """Of weights, gradients and state of a run, for each parameter."""
    for size in SIZES:
        run = climb(build(MODEL), loss="cross_entropy", plan=plan_of(size), device=device)
        state = measure_state(run, as_batch(tokens(2, 64, 32000, device), 0))
        elements = sum(p.numel() for p in run.module.parameters())
        each = (state.parameters + state.gradients + state.optimizer) / elements
        yield {"state": size, "bytes": each}


def optimizer_of(size: int, parameters: list[nn.Parameter]) -> MasterAdam:
    groups = [{"params": parameters}]
    if size == 16:
        return MasterAdam(groups, {}, **ADAM)
    names = {p: Identity(str(index)) for index, p in enumerate(parameters)}
    return CompactAdam(groups, {}, bytes_each=size, identities=names, **ADAM)


def compare_bits(device: str) -> dict[str, Any]:
    """Masters and moments after the same updates in 16 and 14 bytes; elements that differ."""
    shapes = [(4096, 4096), (1000, 77), (513,)]
    torch.manual_seed(0)
    values = [torch.randn(shape, device=device).mul_(0.02).bfloat16() for shape in shapes]
    kinds = {size: [nn.Parameter(value.clone()) for value in values] for size in (16, 14)}
    optimizers = {size: optimizer_of(size, parameters) for size, parameters in kinds.items()}
    for _ in range(UPDATES):
        for index, shape in enumerate(shapes):
            gradient = torch.randn(shape, device=device).bfloat16()
            for parameters in kinds.values():
                parameters[index].grad = gradient
        for optimizer in optimizers.values():
            optimizer.step()
    differing = 0
    for p, q in zip(kinds[16], kinds[14]):
        one, other = state_of(optimizers[16], p), state_of(optimizers[14], q)
        differing += sum(int((one[key] != other[key]).sum()) for key in one)
        differing += int((p != q).sum())
    return {"updates": UPDATES, "differing": differing, "of": sum(v.numel() for v in values)}


def time_updates() -> list[dict[str, Any]]:
    """Milliseconds of one update of a Llama 1B's parameters, each way in turn."""
    ways = {"torch fused AdamW, fp32": torch_update(), **{plan_of(s): our_update(s) for s in SIZES}}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, update in ways.items():
            found[name].append(milliseconds(update))
    first = statistics.median(next(iter(found.values())))
    return [
        {"way": name, "ms": (ms := statistics.median(times)), "ratio": ms / first,
         "spread": max(times) / min(times) - 1}
        for name, times in found.items()
    ]  # fmt: skip


def torch_update() -> Callable[[], Any]:
    parameters = made(torch.float32)
    optimizer = torch.optim.AdamW(parameters, fused=True, capturable=True, **ADAM)
    return recorded(optimizer)


def our_update(size: int) -> Callable[[], Any]:
    return recorded(optimizer_of(size, made(torch.bfloat16)))


def made(dtype: torch.dtype) -> list[nn.Parameter]:
    parameters = []
    for shape in SHAPES:
        p = nn.Parameter(torch.randn(shape, device="cuda").mul_(0.02).to(dtype))
        p.grad = torch.randn(shape, device="cuda").mul_(1e-3).to(dtype)
        parameters.append(p)
    return parameters


def recorded(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """An update as a CUDA graph, which no host can delay."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            optimizer.step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()

    def update() -> None:
        graph.replay()
        assert optimizer.param_groups, (
            "keeps what the graph reads: another recording frees the rest"
        )

    return update


def milliseconds(update: Callable[[], Any]) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    update()
    begun.record()
    for _ in range(REPEATS):
        update()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / REPEATS


def tokens(rows: int, length: int, vocab: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randint(0, vocab, (rows, length + 1), device=device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def train_large(text: str, rows: int) -> dict[str, Any]:
    """Tokens a second and the peak of an 8B's steps, gradients and updates included."""
    torch.cuda.reset_peak_memory_stats()
    module = build(LARGE, device="meta", sequence=SEQUENCE)
    plan = f"{text} {COMPILED}"
    run = climb(module, loss="cross_entropy", optimizer="adamw lr=1e-4", plan=plan, device="cuda")
    batch, seconds, losses = tokens(rows, SEQUENCE, 128256, "cuda"), [], []
    for _ in range(STEPS + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        losses.append(run.step(batch).read().loss)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    whole = statistics.median(seconds[1:])
    return {
        "plan": plan, "rows": rows, "step": whole, "first": seconds[0],
        "tokens_per_second": rows * SEQUENCE / whole,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "losses": losses,
    }  # fmt: skip


def read_plans(text: str) -> list[tuple[str, int]]:
    pairs = (one.rpartition(":") for one in text.split(";"))
    return [(plan.strip(), int(rows)) for plan, _, rows in pairs]


def measure_large(plans: list[tuple[str, int]], limit: float) -> Iterator[dict[str, Any]]:
    """Each plan, while the next one would be done in time."""
    begun, longest = time.perf_counter(), 0.0
    for text, rows in plans:
        started = time.perf_counter()
        if started - begun + longest > limit:
            return
        try:
            yield train_large(text, rows)
        except Exception as failed:  # what ran out of memory is a result as well
            plan = f"{text} {COMPILED}"
            yield {"plan": plan, "rows": rows, "failed": str(failed)[:300]}
        gc.collect()
        torch.cuda.empty_cache()
        longest = max(longest, time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("update", "large"))
    parser.add_argument("--plans", default=PLANS, help="of the 8B shape, each with its rows")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the 8B shape")
    parser.add_argument("--out", default="benchmarks/results/optimizer_state_gpu.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("device: this table is of a GPU and this machine has none.")
    out = Path(options.out)
    result: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    result |= {
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": "python benchmarks/optimizer_state_gpu.py",
    }

    def keep(name: str, value: Any) -> None:
        """Written after each, so that nothing is lost when time runs out."""
        result[name] = value
        print(name, json.dumps(value), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")

    if options.only != "large":
        keep("updates", time_updates())
        gc.collect()
        torch.cuda.empty_cache()
        keep("bits", compare_bits("cuda"))
        keep("bytes", list(count_bytes("cuda")))
    if options.only != "update":
        rows = {(row["plan"], row["rows"]): row for row in result.get("large", [])}
        for row in measure_large(read_plans(options.plans), options.limit):
            rows[row["plan"], row["rows"]] = row
            keep("large", list(rows.values()))


if __name__ == "__main__":
    main()
