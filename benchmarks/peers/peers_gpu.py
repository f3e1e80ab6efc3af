"""Ours and the peers on one GPU: the same module, the same batches, turn by turn.

    PYTHONPATH=src python3 benchmarks/peers/peers_gpu.py [CONTEST ...] [--rounds 3] [--steps 10]

Contests: gpt, llama1b, fp8, memory, hf, resnet, llama8b; without a name, all of them. Each runs in
a process of its own, so one that fails or is killed costs only itself. Contestants take turns of a
few steps; the table has the median turn and the spread between turns. `--alone` has them run one
after another, where their states do not fit together. Results are written as they come to
benchmarks/results/peers_gpu.json, with peers_gpu.md (the table) and a plot beside it. Optional
packages (torchao) are also found in the folders STEPLADDER_EXTRAS names.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [p for p in os.environ.get("STEPLADDER_EXTRAS", "").split(os.pathsep) if p]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import peer_frameworks as frameworks  # noqa: E402

PEAK = 989.4e12  # dense bf16 of an H100 or H200, by NVIDIA's datasheet
RESULTS = Path(__file__).parents[1] / "results"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = os.environ.get("STEPLADDER_TINY") == "1"  # the same code on toy shapes, to try it on a CPU

GPT = "gpt:layers=12,hidden=768,heads=12,vocab=50304,sequence=1024,tied=1"
LLAMA_1B = (
    "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocab=128256,sequence=4096,tied=1"
)
LLAMA_8B = (
    "llama:layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256,sequence=4096,tied=0"
)
TINY_SHAPES = {
    GPT: "gpt:layers=2,hidden=32,heads=2,vocab=33000,sequence=16,tied=1",
    LLAMA_1B: "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,vocab=33000,sequence=16,tied=1",
    LLAMA_8B: "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=64,vocab=33000,sequence=16,tied=0",
}


@dataclass(frozen=True)
class Contest:
    name: str
    model: str  # a shape, "hf" or "resnet50"
    rows: int
    length: int
    plans: tuple[str, ...]  # of ours
    peers: tuple[str, ...] = ()
    note: str = ""


FAST = "compile=on kernels=on"
CONTESTS = {
    c.name: c
    for c in (
        Contest("llama1b", LLAMA_1B, 8, 4096, (f"bf16 {FAST}", f"bf16-master {FAST}"),
                ("hand", "accelerate", "lightning")),
        Contest("gpt", GPT, 32, 1024, (f"bf16 {FAST}", f"bf16 {FAST} graphs=on",
                f"bf16-master {FAST}", f"bf16-master {FAST} graphs=on", f"fp8-master {FAST}"),
                ("hand", "accelerate", "lightning")),
        Contest("hf", "hf", 8, 4096, (f"bf16 {FAST}", f"bf16-master {FAST}"), ("trainer",)),
        Contest("memory", LLAMA_1B, 8, 4096, (f"bf16 recompute=selective {FAST}",
                f"bf16-master recompute=selective {FAST}"), ("hand",)),
        Contest("fp8", LLAMA_1B, 8, 4096, (f"fp8-master {FAST}",), ("hand",)),
        Contest("resnet", "resnet50", 256, 0, (f"bf16 {FAST}", f"bf16 {FAST} graphs=on"),
                ("hand", "images", "timed")),
        Contest("llama8b", LLAMA_8B, 4, 4096, (f"bf16-pure {FAST}",)),
    )
}  # fmt: skip


def make_module(contest: Contest) -> nn.Module:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        if contest.model == "resnet50":
            from torchvision.models import resnet50

            return resnet50()
        if contest.model == "hf":
            return hugging_face_llama()
        from stepladder.model import build

        return build(TINY_SHAPES[contest.model] if TINY else contest.model)


def hugging_face_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "max_position_embeddings": 4096, "rope_theta": 500000.0,
    }  # fmt: skip
    toy = {
        "vocab_size": 33000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    config = LlamaConfig(tie_word_embeddings=True, **(toy if TINY else wide))
    return LlamaForCausalLM(config)


def make_batches(contest: Contest, number: int = 4) -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    rows, length = (2, 16) if TINY else (contest.rows, contest.length)
    made: list[Any] = []
    for _ in range(number):
        if contest.model == "resnet50":
            size = 64 if TINY else 224
            pair = (
                torch.randn(rows, 3, size, size, generator=draw),
                torch.randint(0, 1000, (rows,), generator=draw),
            )
        else:
            vocab = 33000 if TINY else int(contest.model.partition("vocab=")[2].split(",")[0] or 0)
            tokens = torch.randint(0, vocab or 128256, (rows, length + 1), generator=draw)
            pair = (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        pinned = tuple(t.pin_memory() if DEVICE == "cuda" else t for t in pair)
        made.append(
            {"input_ids": pinned[0], "labels": pinned[0]} if contest.model == "hf" else pinned
        )
    return made


@dataclass
class Entry:
    """One framework's turns."""

    framework: frameworks.Framework
    first_step_seconds: float
    resident: int  # bytes it keeps between turns
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    busy: float | None = None
    top: list[tuple[str, float]] = field(default_factory=list)


def enter(name: str, contest: Contest, batches: list[Any]) -> Entry:
    """Build a framework and have it take its first steps."""
    held = allocated()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    module = make_module(contest)
    makers = {
        "hand": lambda: frameworks.hand_written(module, DEVICE),
        "images": lambda: frameworks.hand_written(module, DEVICE, images=True),
        "timed": lambda: frameworks.hand_written(module, DEVICE, images=True, timed=True),
        "accelerate": lambda: frameworks.accelerate(module, DEVICE),
        "lightning": lambda: frameworks.lightning(module, DEVICE),
    }
    if name not in makers:
        own = contest.model == "hf"
        makers[name] = lambda: frameworks.ours(module, DEVICE, name, batches, own_loss=own)
    framework = makers[name]()
    if name in ("images", "timed"):
        framework.name += " channels_last" + (", cudnn.benchmark" if name == "timed" else "")
    begun = time.perf_counter()
    framework.step(batches[0])
    frameworks.wait(DEVICE)
    first = time.perf_counter() - begun
    for batch in batches[1:3]:
        framework.step(batch)
    frameworks.wait(DEVICE)
    # A replay works in memory that is counted only while its steps are recorded: here.
    recorded = "graphs=on" in name and DEVICE == "cuda"
    peak = torch.cuda.max_memory_allocated() - held if recorded else 0
    collect()
    return Entry(framework, first, allocated() - held, peak_bytes=peak)


def take_turn(entry: Entry, batches: list[Any], steps: int) -> None:
    """Some steps, timed as a whole: nobody is made to wait after each."""
    entry.framework.step(batches[-1])
    frameworks.wait(DEVICE)
    others = allocated() - entry.resident
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    for index in range(steps):
        last = entry.framework.step(batches[index % len(batches)])
    frameworks.wait(DEVICE)
    entry.seconds.append((time.perf_counter() - begun) / steps)
    del last
    if DEVICE == "cuda":
        entry.peak_bytes = max(entry.peak_bytes, torch.cuda.max_memory_allocated() - others)


def look_inside(entry: Entry, batches: list[Any]) -> None:
    """The share of time the GPU is busy, and its longest kernels, over three steps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        begun = time.perf_counter()
        for batch in batches[:3]:
            entry.framework.step(batch)
        frameworks.wait(DEVICE)
        wall = time.perf_counter() - begun
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in rows)
    entry.busy = total / 1e6 / wall
    entry.top = [(e.key[:90], e.self_device_time_total / 3e3) for e in rows[:40]]


def allocated() -> int:
    return torch.cuda.memory_allocated() if DEVICE == "cuda" else 0


def collect() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def flops_per_token(contest: Contest) -> float | None:
    """6 · matrix parameters, the head among them, + 6 · layers · width · length (causal)."""
    if contest.model == "resnet50":
        return None
    text = LLAMA_1B if contest.model == "hf" else contest.model
    shape = dict(word.split("=") for word in text.partition(":")[2].split(","))
    shape = {key: int(value) for key, value in shape.items()}
    width, layers, heads = shape["hidden"], shape["layers"], shape["heads"]
    kv = shape.get("kv_heads", heads) * width // heads
    ffn = 3 * shape["ffn"] if "ffn" in shape else 2 * 4 * width
    matrices = layers * (2 * width * width + 2 * width * kv + width * ffn) + width * shape["vocab"]
    return 6 * matrices + 6 * layers * width * contest.length


def row_of(entry: Entry, contest: Contest) -> dict[str, Any]:
    seconds = median(entry.seconds)
    units = contest.rows * (contest.length or 1)
    flops = flops_per_token(contest)
    spread = (max(entry.seconds) - min(entry.seconds)) / seconds
    return {
        "contest": contest.name,
        "name": entry.framework.name,
        "ran": entry.framework.ran,
        "step_ms": 1e3 * seconds,
        "per_second": units / seconds,
        "spread": spread,
        "turns_ms": [1e3 * s for s in entry.seconds],
        "mfu": flops and flops * units / seconds / PEAK,
        "peak_gb": entry.peak_bytes / 1e9,
        "first_step_seconds": entry.first_step_seconds,
        "gpu_busy": entry.busy,
        "kernels_ms": entry.top,
    }


def run_contest(contest: Contest, options: argparse.Namespace) -> None:
    """Have everybody enter, then take turns; what is known is written down after each round."""
    names = [n for n in (*contest.peers, *contest.plans) if n != "trainer"]
    if options.only:
        names = [n for n in names if any(word in n for word in options.only.split(","))]
    batches = make_batches(contest)
    rows: list[dict[str, Any]] = []
    if "trainer" in contest.peers and (not options.only or "trainer" in options.only):
        try:
            rows.append(run_trainer(contest, batches, options))
            print(line(rows[-1]), flush=True)
        except Exception:
            print(f"{contest.name}: trainer: {traceback.format_exc()[-1200:]}", flush=True)
        collect()
    for group in [[name] for name in names] if options.alone else [names]:
        entries = [e for e in (try_enter(name, contest, batches) for name in group) if e]
        for number in range(options.rounds):
            for entry in entries:
                take_turn(entry, batches, options.steps)
                if options.profile and DEVICE == "cuda" and number == options.rounds - 1:
                    look_inside(entry, batches)
            now = [*rows, *(row_of(entry, contest) for entry in entries)]
            options.inside.write_text(json.dumps(now))
        rows = now if entries else rows
        for row in rows[len(rows) - len(entries) :]:
            print(line(row), flush=True)
        entries.clear()
        collect()


def try_enter(name: str, contest: Contest, batches: list[Any]) -> Entry | None:
    """A framework; None for a peer that is not here or does not run, which is said."""
    found = None
    try:
        found = enter(name, contest, batches)
        took = f"{found.framework.name}: first step {found.first_step_seconds:.1f} s"
        print(f"{contest.name}: {took}", flush=True)
    except Exception:
        print(f"{contest.name}: {name}: {traceback.format_exc()[-1200:]}", flush=True)
    collect()
    return found


def run_trainer(contest: Contest, batches: list[Any], options: Any) -> dict[str, Any]:
    turn, framework = frameworks.hugging_face(make_module(contest), DEVICE, batches, options.steps)
    begun = time.perf_counter()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    entry = Entry(framework, 0.0, 0, [turn()])
    entry.first_step_seconds = time.perf_counter() - begun  # of the whole first turn
    entry.seconds.append(turn())
    if DEVICE == "cuda":
        entry.peak_bytes = torch.cuda.max_memory_allocated()
    return row_of(entry, contest)


def line(row: dict[str, Any]) -> str:
    mfu = "" if row["mfu"] is None else f"  MFU {row['mfu']:.1%}"
    busy = "" if row["gpu_busy"] is None else f"  busy {row['gpu_busy']:.1%}"
    peak = "unknown" if row["peak_gb"] is None else f"{row['peak_gb']:.1f} GB"
    return (
        f"{row['contest']:8} {row['name']:52} {row['step_ms']:8.2f} ms ±{row['spread']:.1%} "
        f"{row['per_second']:>12,.0f} /s{mfu}  peak {peak}  "
        f"first {row['first_step_seconds']:.1f} s{busy}"
    )


def is_ours(row: dict[str, Any]) -> bool:
    return row["name"].startswith("stepladder")


def table(rows: list[dict[str, Any]], heading: str) -> str:
    """Markdown, with each row beside the fastest peer of its contest."""
    text = [f"# Against the peers\n\n{heading}\n"]
    for name in dict.fromkeys(row["contest"] for row in rows):
        mine = [row for row in rows if row["contest"] == name]
        peers = [row for row in mine if not is_ours(row)]
        best = max((row["per_second"] for row in peers), default=None)
        least = min((row["peak_gb"] for row in peers), default=None)
        unit = "images/s" if name == "resnet" else "tokens/s"
        heads = (
            f"| | {unit} | × best peer | spread | MFU | peak GB | × peer | first step s | busy |"
        )
        text.append(f"## {name}\n\n{heads}\n|{'---|' * 9}")
        for row in mine:
            cells = (
                row["name"], f"{row['per_second']:,.0f}",
                f"{row['per_second'] / best:.3f}" if best else "–", f"{row['spread']:.1%}",
                f"{row['mfu']:.1%}" if row["mfu"] else "–",
                f"{row['peak_gb']:.1f}" if row["peak_gb"] else "unknown",
                f"{row['peak_gb'] / least:.2f}" if least and row["peak_gb"] else "–",
                f"{row['first_step_seconds']:.0f}",
                f"{row['gpu_busy']:.1%}" if row["gpu_busy"] else "–",
            )  # fmt: skip
            text.append(f"| {' | '.join(cells)} |")
        text.append("\nWhat each ran:\n")
        text += [f"- {row['name']}: {row['ran']}" for row in mine]
        text.append("")
    return "\n".join(text)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ModuleNotFoundError:
        return
    names = list(dict.fromkeys(row["contest"] for row in rows))
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 4), squeeze=False)
    for axis, name in zip(axes[0], names):
        mine = [row for row in rows if row["contest"] == name]
        colours = ["tab:green" if is_ours(row) else "tab:gray" for row in mine]
        axis.barh(
            [row["name"][:34] for row in mine], [r["per_second"] for r in mine], color=colours
        )
        axis.set_title(name)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    about = {"date": time.strftime("%Y-%m-%d"), "machine": device, "torch": torch.__version__}
    (folder / "peers_gpu.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    heading = f"{about['date']}, {device}, torch {about['torch']}, `benchmarks/peers/peers_gpu.py`."
    (folder / "peers_gpu.md").write_text(table(rows, heading))
    plot(rows, folder / "peers_gpu.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contests", nargs="*", choices=[*CONTESTS, []])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="GPU busy share and kernels")
    parser.add_argument("--alone", action="store_true", help="one after another: less memory")
    parser.add_argument("--only", default="", help="words; frameworks without one stay away")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # a contest's own process
    options = parser.parse_args()
    if options.inside:
        run_contest(CONTESTS[options.contests[0]], options)
        return
    rows: list[dict[str, Any]] = []
    for name in options.contests or CONTESTS:
        part = options.out / f"contest-{name}.json"
        options.out.mkdir(parents=True, exist_ok=True)
        words = [name, "--rounds", str(options.rounds), "--steps", str(options.steps),
                 "--only", options.only, "--inside", str(part)]  # fmt: skip
        words += ["--profile"] if options.profile else []
        words += ["--alone"] if options.alone else []
        subprocess.run([sys.executable, __file__, *words], check=False)
        if part.exists():
            rows += json.loads(part.read_text())
            part.unlink()
            write(rows, options.out)


if __name__ == "__main__":
    main()
