"""LoRA on a Llama of 1B parameters: stepladder against peft with the loop a user would write.

    python benchmarks/lora_gpu.py --rows 8 [--arms "peft,peft bf16,PLAN,PLAN"] [--seconds 90]
        [--out FILE.json]
    python benchmarks/lora_gpu.py --table FILE.json FILE.json

Arms: "peft" is a loop with autocast to bf16, torch.compile of forward and loss together, gradient
clipping and fused AdamW over the adapters; "peft bf16" loads the frozen weights in bf16 first. Any
other arm is a plan's text. All have the same shape, weights, adapters (r=16 on every linear) and
batches, and take turns; a step's time is the median of the turns. After --seconds no further arm is
compiled. The results are written as soon as they are known.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

import stepladder as sl

RESULTS = Path(__file__).parent / "results"
SHAPES = {
    "llama-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    },
}  # fmt: skip
FAST = "compile=whole kernels=on"
ARMS = f"peft bf16,bf16-master {FAST} graphs=on,peft,bf16 {FAST} graphs=on,bf16-master {FAST}"
TURNS, TURN_SECONDS, BATCHES, LOSSES, RATE = 5, 0.5, 4, 8, 1e-4
GIB = 2**30


def adapted(shape: str, device: str, *, narrow: bool = False) -> torch.nn.Module:
    """The same model and adapters each time; the frozen weights in bf16 if asked for."""
    import peft
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPES[shape]))
    model.config.use_cache = False
    model = model.to(torch.bfloat16) if narrow else model
    how = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    torch.manual_seed(1)
    return peft.get_peft_model(model, how).train()


class Hand:
    """The loop a user would write."""

    def __init__(self, shape: str, device: str, *, narrow: bool = False) -> None:
        self.module, self.device = adapted(shape, device, narrow=narrow), device
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.loss = torch.compile(lambda batch: self.module(**batch).loss)

    def step(self, batch: dict[str, torch.Tensor]) -> Callable[[], float]:
        batch = {name: one.to(self.device, non_blocking=True) for name, one in batch.items()}
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return lambda: float(loss.detach())


class Ours:
    """stepladder with a plan."""

    def __init__(self, shape: str, device: str, plan: str, sample: dict[str, torch.Tensor]) -> None:
        module = adapted(shape, device)
        self.run = sl.climb(
            module, optimizer=f"adamw lr={RATE} clip=1 wd=0.01", plan=plan, sample=sample,
            device=device,
        )  # fmt: skip

    def step(self, batch: dict[str, torch.Tensor]) -> Callable[[], float]:
        report = self.run.step(batch)
        return lambda: report.loss


def make_loop(arm: str, shape: str, device: str, sample: dict[str, torch.Tensor]) -> Any:
    if arm.startswith("peft"):
        return Hand(shape, device, narrow=arm == "peft bf16")
    return Ours(shape, device, arm, sample)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def start(arm: str, options: argparse.Namespace, batches: list[Any]) -> tuple[Any, dict[str, Any]]:
    """An arm that has taken its first steps, and its row; None where it failed."""
    row: dict[str, Any] = {
        "arm": arm, "shape": options.shape, "rows": options.rows, "sequence": options.sequence,
    }  # fmt: skip
    before, began = allocated(), time.monotonic()
    try:
        loop = make_loop(arm, options.shape, options.device, batches[0])
        feed = cycle(batches)
        losses = [loop.step(next(feed))()]
        row["first_step_seconds"] = round(time.monotonic() - began, 1)
        losses += [loop.step(next(feed))() for _ in range(LOSSES)]
        row["losses"] = [round(loss, 6) for loss in losses]
    except Exception as error:  # one arm may fail in any way, and the others go on
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return None, row
    gc.collect()
    synchronise()
    row["held_gib"] = round((allocated() - before) / GIB, 3)
    return loop, row


def take_turn(loop: Any, batches: list[Any]) -> tuple[float, float]:
    """Seconds of a step, and the most memory in GiB that was in use above what was held."""
    synchronise()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    held, began, steps, feed = allocated(), time.perf_counter(), 0, cycle(batches)
    while steps < 4 or time.perf_counter() - began < TURN_SECONDS:
        loop.step(next(feed))
        steps += 1
        if steps % 4 == 0:
            synchronise()  # so that a queue of steps does not outlast the turn
    synchronise()
    seconds = (time.perf_counter() - began) / steps
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return seconds, (peak - held) / GIB


def measure(options: argparse.Namespace) -> None:
    """Start every arm, then take turns."""
    draw, began = torch.Generator().manual_seed(0), time.monotonic()
    size = (options.rows, options.sequence)
    tokens = [
        torch.randint(0, SHAPES[options.shape]["vocab_size"], size, generator=draw)
        for _ in range(BATCHES)
    ]
    batches = [{"input_ids": one, "labels": one.clone()} for one in tokens]
    rows, loops, times = {}, {}, {}

    def turn(arm: str) -> None:
        seconds, above = take_turn(loops[arm], batches)
        times.setdefault(arm, []).append(seconds)
        rows[arm]["step_gib"] = round(max(above, rows[arm].get("step_gib", 0)), 3)
        rows[arm]["ms"] = round(1e3 * statistics.median(times[arm]), 3)
        rows[arm]["turns_ms"] = [round(1e3 * one, 3) for one in times[arm]]
        write(list(rows.values()), options.out)

    for arm in options.arms.split(","):
        if time.monotonic() - began > options.seconds:
            rows[arm] = {"arm": arm, "error": f"not started within {options.seconds:g} s"}
            continue
        loop, rows[arm] = start(arm, options, batches)
        if loop is not None:
            loops[arm] = loop
            turn(arm)  # at once, so that a run that is cut short has it
        print(json.dumps(rows[arm]), flush=True)
    for _ in range(TURNS - 1):
        for arm in loops:
            turn(arm)
    write(list(rows.values()), options.out)


def write(rows: list[dict[str, Any]], out: Path) -> None:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    said = {"torch": torch.__version__, "gpu": gpu, "date": time.strftime("%Y-%m-%d")}
    out.write_text(json.dumps([{**row, **said} for row in rows], indent=1) + "\n")


def table(files: list[Path]) -> str:
    """Each arm beside the fastest loop with peft."""
    rows = [row for file in files for row in json.loads(file.read_text()) if "ms" in row]
    where = sorted({f"{row['gpu']}, torch {row['torch']}, {row['date']}" for row in rows})
    lines = [
        "# LoRA on a Llama of 1B parameters",
        "",
        f"`python benchmarks/lora_gpu.py` on {'; '.join(where)}. r=16 on every linear; × is the "
        "speed over the faster of the two loops with peft (autocast to bf16, torch.compile, fused "
        "AdamW).",
        "",
        "| rows × tokens | arm | ms | × | held, GiB | above it in a step, GiB | loss after 9 |",
        "|---|---|---|---|---|---|---|",
    ]
    for size in dict.fromkeys((row["rows"], row["sequence"]) for row in rows):
        timed = [row for row in rows if (row["rows"], row["sequence"]) == size]
        hand = min((row["ms"] for row in timed if row["arm"].startswith("peft")), default=None)
        for row in timed:
            ratio = f"{hand / row['ms']:.3f}" if hand else "–"
            # A recorded step keeps its memory between steps, and the allocator does not count it.
            above = "in the graph" if "graphs=on" in row["arm"] else f"{row['step_gib']:.2f}"
            lines.append(
                f"| {size[0]} × {size[1]} | `{row['arm']}` | {row['ms']:.2f} | {ratio} | "
                f"{row['held_gib']:.2f} | {above} | {row['losses'][-1]:.4f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--arms", default=ARMS)
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "lora_gpu.json")
    parser.add_argument("--table", type=Path, nargs="+")
    options = parser.parse_args()
    if options.table:
        text = table(options.table)
        (RESULTS / "lora_gpu.md").write_text(text)
    else:
        measure(options)
        text = table([options.out])
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
