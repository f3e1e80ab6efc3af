"""`exact` on a GPU: the same bits in every run and after a resume, and what that costs.

Run: PYTHONPATH=src python3 benchmarks/exact_gpu.py --attention --prices --plain --hashes --default
     PYTHONPATH=src python3 benchmarks/exact_gpu.py --prices --warm --models "gpt 1k"

Hashes: each model and plan trains three times, each time in a process of its own: once from the
start, once more with empty compile caches, and once from the checkpoint that the first wrote at a
random step. The hash is of every bit of the parameters, buffers, optimizer state and losses.
Plain: two runs of each model without `exact`, which may repeat by themselves. Prices: steps with
and without `exact=True` in turns, in one process; with --warm only torch's compile caches are
filled, which several processes may do beside each other. Attention: forward and backward of cuDNN,
of torch's deterministic flash attention, and of ours. Default: what `auto` finds for each model,
and whether two runs repeat where it keeps deterministic algorithms because they cost nothing. A row
is written to results/exact_gpu.json as soon as it is known.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import stepladder as sl
from stepladder.kernels.attention import use_exact_attention
from stepladder.plan import Plan
from stepladder.workload import Shape

RESULTS = Path(__file__).parent / "results" / "exact_gpu.json"
PLANS = (
    "fp32",
    "tf32",
    "bf16",
    "bf16 recompute=blocks micro=1",
    "bf16 compile=on",
    "bf16 compile=on kernels=on",
    "bf16 compile=on kernels=on graphs=on",
    "bf16-master compile=on kernels=on",
    "fp8-master compile=on kernels=on",
)
PRICED = ("bf16", "bf16 compile=on kernels=on", "bf16-master compile=on kernels=on")
AUTO = ("auto tune=150", "auto compile=off tune=150")
WARM_UP, TURNS, TURN_SECONDS, PROFILED = 5, 5, 0.5, 3
PROCESSES = multiprocessing.get_context("spawn")
FRESH = ("again", "resumed")  # runs with compile caches of their own


def batches_of_tokens(rows: int, tokens: int, words: int) -> list[Any]:
    drawn = torch.randint(0, words, (8, rows, tokens + 1))
    return [(one[:, :-1].clone(), one[:, 1:].clone()) for one in drawn]


def gpt(rows: int = 2, tokens: int = 1024, layers: int = 4) -> tuple[nn.Module, list[Any]]:
    shape = Shape("gpt", layers, 768, 12, 12, 3072, 50304, tokens, True)
    return sl.build(shape, sequence=tokens), batches_of_tokens(rows, tokens, 50304)


def llama(rows: int = 2, tokens: int = 1024, layers: int = 2) -> tuple[nn.Module, list[Any]]:
    shape = Shape("llama", layers, 2048, 16, 8, 5632, 32000, tokens)
    return sl.build(shape, sequence=tokens), batches_of_tokens(rows, tokens, 32000)


def hugging_face_llama(
    rows: int = 2, tokens: int = 1024, layers: int = 2
) -> tuple[nn.Module, list[Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=32000, max_position_embeddings=max(tokens, 2048),
        use_cache=False,
    )  # fmt: skip
    drawn = torch.randint(0, 32000, (8, rows, tokens))
    return LlamaForCausalLM(config), [{"input_ids": one, "labels": one} for one in drawn]


def resnet50(rows: int = 32) -> tuple[nn.Module, list[Any]]:
    images = torch.randn(4, rows, 3, 224, 224)
    return sl.build("resnet50"), [(one, torch.randint(0, 1000, (rows,))) for one in images]


MODELS: dict[str, Callable[[], tuple[nn.Module, list[Any]]]] = {
    "gpt": gpt,
    "llama": llama,
    "hf llama": hugging_face_llama,
    "resnet50": resnet50,
}
# Tokens a sequence; as many rows as fill the GPU.
PRICES: dict[str, Callable[[], tuple[nn.Module, list[Any]]]] = {
    "gpt 1k": lambda: gpt(16, 1024, 12),
    "gpt 4k": lambda: gpt(4, 4096, 12),
    "llama 1k": lambda: llama(8, 1024, 8),
    "llama 4k": lambda: llama(2, 4096, 8),
    "hf llama 1k": lambda: hugging_face_llama(8, 1024, 8),
    "hf llama 4k": lambda: hugging_face_llama(2, 4096, 8),
    "resnet50": lambda: resnet50(128),
}


def make(model: Callable[[], tuple[nn.Module, list[Any]]], plan: str, *, exact: bool) -> Any:
    torch.manual_seed(0)
    module, batches = model()
    loss = None if isinstance(batches[0], dict) else "cross_entropy"  # the model's own
    run = sl.climb(
        module, loss=loss, optimizer="adamw lr=1e-4 clip=1", plan=plan, exact=exact,
        sample=batches[0], device="cuda",
    )  # fmt: skip
    return run, batches


def hash_of(run: Any, losses: list[float]) -> str:
    found = hashlib.blake2b(json.dumps(losses).encode(), digest_size=8)
    state = run.optimizer.state_dict()["state"]
    for one in (*run.module.state_dict().values(), *tensors_in(state)):
        found.update(one.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def tensors_in(nest: Any) -> Iterator[Tensor]:
    for one in nest.values() if isinstance(nest, dict) else nest:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, dict | list | tuple):
            yield from tensors_in(one)


def train(model: str, plan: str, role: str, folder: str, steps: int, saved: int, sent: Any) -> None:
    """One run, in its own process: `role` is first, again or resumed, or plain without `exact`."""
    caches = Path(folder) / ("fresh" if role in FRESH else "first")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(caches / "triton")
    os.environ["XDG_CACHE_HOME"] = str(caches / "user")
    torch.set_num_threads(1)
    try:
        run, batches = make(MODELS[model], plan, exact=role != "plain")
        losses = list[float]()
        if role == "resumed":
            run.resume(Path(folder) / "run")
            losses = json.loads((Path(folder) / "losses.json").read_text())
        reports = list[Any]()
        for index in range(len(losses), steps):
            reports.append(run.step(batches[index % len(batches)]))
            if role == "first" and index + 1 == saved:
                run.save(Path(folder) / "run")
                seen = [one.loss for one in reports]
                (Path(folder) / "losses.json").write_text(json.dumps(seen))
        sent.send({"hash": hash_of(run, losses + [one.loss for one in reports])})
    except Exception as error:
        sent.send({"problem": f"{type(error).__name__}: {str(error)[:400]}"})


def in_process(*arguments: Any) -> dict[str, str]:
    receive, send = multiprocessing.Pipe(duplex=False)
    process = PROCESSES.Process(target=train, args=(*arguments, send))
    process.start()
    send.close()
    try:
        found: dict[str, str] = receive.recv()
    except EOFError:
        found = {"problem": "the process ended without a word"}
    process.join()
    return found


def compare(model: str, plan: str, steps: int) -> dict[str, Any]:
    """The hashes of three runs of one model and plan."""
    saved = random.Random(f"{model} {plan}").randrange(steps // 5, steps - steps // 5)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor(2) as pool:
            independent = {
                role: pool.submit(in_process, model, plan, role, folder, steps, saved)
                for role in ("first", "again")
            }
            found = {role: each.result() for role, each in independent.items()}
        found["resumed"] = in_process(model, plan, "resumed", folder, steps, saved)
    hashes = {each.get("hash") for each in found.values()}
    same = len(hashes) == 1 and None not in hashes
    return {
        "kind": "hashes", "model": model, "plan": plan, "steps": steps, "saved": saved,
        "same": same, "runs": found, "seconds": round(time.perf_counter() - began),
    }  # fmt: skip


def repeats(model: str, plan: str, steps: int) -> dict[str, Any]:
    """Whether two runs without `exact` give the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        found = [in_process(model, plan, "plain", folder, steps, 0) for _ in range(2)]
    same = "hash" in found[0] and found[0] == found[1]
    return {
        "kind": "plain", "model": model, "plan": plan, "steps": steps, "same": same, "runs": found,
    }  # fmt: skip


SHAPES = (  # batch, heads, heads of keys, tokens, width
    (16, 12, 12, 1024, 64), (4, 12, 12, 4096, 64), (8, 16, 16, 1024, 128), (2, 16, 16, 4096, 128),
    (2, 16, 8, 4096, 128),
)  # fmt: skip


def time_attention() -> list[dict[str, Any]]:
    """Milliseconds of forward and backward; ours comes last, because it stays registered."""
    rows = [
        {"kind": "attention", "model": f"{heads} heads of {width}, {shared} of keys",
         "plan": f"{batch} x {tokens} tokens"}
        for batch, heads, shared, tokens, width in SHAPES
    ]  # fmt: skip
    for name in ("cudnn", "flash deterministic", "exact"):
        torch.use_deterministic_algorithms(name != "cudnn")
        torch.utils.deterministic.fill_uninitialized_memory = False
        if name == "exact" and not use_exact_attention(torch.device("cuda")):
            break
        for row, shape in zip(rows, SHAPES, strict=True):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if name == "cudnn" else nullcontext():
                row[name] = forward_and_backward(*shape)
    torch.use_deterministic_algorithms(False)
    return rows


def forward_and_backward(
    batch: int, heads: int, shared: int, tokens: int, width: int
) -> tuple[float, float]:
    query, key, value = (
        torch.randn(batch, tokens, count, width, device="cuda", dtype=torch.bfloat16)
        .transpose(1, 2).requires_grad_()
        for count in (heads, shared, shared)
    )  # fmt: skip
    gradient = torch.randn_like(query)

    def attend() -> Tensor:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=heads != shared
        )

    out = attend()
    return milliseconds(attend), milliseconds(
        lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True)
    )


def milliseconds(run: Callable[[], Any], times: int = 20) -> float:
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / times


def price(model: str, plan: str) -> dict[str, Any]:
    """Seconds of a step with and without `exact`, in turns, and what of it is the update alone."""
    try:
        loops = {exact: make(PRICES[model], plan, exact=exact) for exact in (False, True)}
        for run, batches in loops.values():
            take(run, batches, WARM_UP)
        steps = max(3, int(TURN_SECONDS / take(*loops[False], 5)))
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(TURNS):
            for exact, (run, batches) in loops.items():
                times[exact].append(take(run, batches, steps))
        grown = grown_kernels(*(kernel_times(*loops[exact]) for exact in (False, True)))
    except Exception as error:
        return {"kind": "price", "model": model, "plan": plan, "problem": str(error)[:400]}
    plain, exact = median(times[False]), median(times[True])
    ratios = sorted(b / a for a, b in zip(times[False], times[True], strict=True))
    return {
        "kind": "price", "model": model, "plan": plan, "plain_ms": 1e3 * plain,
        "exact_ms": 1e3 * exact, "ratio": median(ratios), "lowest": ratios[0],
        "highest": ratios[-1], "grown": grown,
    }  # fmt: skip


def kernel_times(run: Any, batches: list[Any]) -> dict[str, float]:
    """Milliseconds a step in each kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        take(run, batches, PROFILED)
    return {
        one.key: one.self_device_time_total / 1e3 / PROFILED
        for one in found.key_averages()
        if one.self_device_time_total
    }


def grown_kernels(
    plain: dict[str, float], exact: dict[str, float]
) -> list[tuple[str, float, float]]:
    """The kernels that take most of the difference: name, milliseconds without and with `exact`."""
    pairs = [
        (name[:120], round(plain.get(name, 0.0), 3), round(exact.get(name, 0.0), 3))
        for name in {**plain, **exact}
    ]
    return sorted(pairs, key=lambda pair: -abs(pair[2] - pair[1]))[:12]


def by_default(model: str, plan: str) -> dict[str, Any]:
    """What `auto` chooses, and the hashes of two runs of that plan where it is exact."""
    row = {"kind": "default", "model": model, "plan": plan}
    with tempfile.TemporaryDirectory() as cache:  # nothing is remembered
        os.environ["XDG_CACHE_HOME"] = cache
        try:
            run, _ = make(PRICES[model], plan, exact=False)
        except Exception as error:
            return {**row, "problem": str(error)[:400]}
    words = str(replace(run.plan, optimizer=Plan().optimizer))
    exact = run.plan.exact.runs
    found = {**row, "chosen": words, "exact": exact, "because": run.because, "tried": run.events}
    if exact:
        found["runs"] = [same_plan(model, words) for _ in range(2)]
        found["same"] = found["runs"][0] == found["runs"][1]
    return found


def same_plan(model: str, plan: str, steps: int = 30) -> str:
    run, batches = make(PRICES[model], plan, exact=False)
    losses = [run.step(batches[index % len(batches)]).loss for index in range(steps)]
    return hash_of(run, losses)


def take(run: Any, batches: list[Any], steps: int) -> float:
    """Seconds of each of so many steps."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    report = None
    for index in range(steps):
        report = run.step(batches[index % len(batches)])
    assert report is not None and report.loss > 0
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for word in ("attention", "prices", "warm", "plain", "hashes", "default"):
        parser.add_argument(f"--{word}", action="store_true")
    parser.add_argument("--models", default=None)
    parser.add_argument("--plans", default=None)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    for row in time_attention() if asked.attention else ():
        keep(asked.results, row)
    if asked.prices:
        for model in chosen(asked.models, PRICES):
            for plan in chosen(asked.plans, PRICED):
                show_price(model, plan, asked.results, only_warm=asked.warm)
    for model in chosen(asked.models, PRICES) if asked.default else ():
        for plan in chosen(asked.plans, AUTO):
            keep(asked.results, by_default(model, plan))
            torch.compiler.reset()
            torch.cuda.empty_cache()
    for kind, run in (("plain", repeats), ("hashes", compare)):
        if not getattr(asked, kind):
            continue
        cases = [
            (model, plan)
            for plan in chosen(asked.plans, PLANS)
            for model in chosen(asked.models, MODELS)
        ]
        with ThreadPoolExecutor(asked.jobs) as pool:
            running = [pool.submit(run, *case, asked.steps) for case in cases]
            for done in as_completed(running):
                keep(asked.results, done.result())


def show_price(model: str, plan: str, results: Path, *, only_warm: bool) -> None:
    if only_warm:
        for exact in (False, True):
            run, batches = make(PRICES[model], plan, exact=exact)
            take(run, batches, 2)
    else:
        keep(results, price(model, plan))
    torch.compiler.reset()
    torch.cuda.empty_cache()


def chosen(asked: str | None, every: Any) -> list[str]:
    return list(every) if asked is None else asked.split(",")


def keep(path: Path, row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    same = ("kind", "model", "plan")
    rows = [each for each in rows if any(each[key] != row[key] for key in same)]
    machine = {
        "date": str(date.today()), "machine": platform.machine(),
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
    }  # fmt: skip
    path.write_text(json.dumps({**machine, "rows": [*rows, row]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
