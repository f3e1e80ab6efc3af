"""The profiler's figures on this machine: unexplained share, overhead, causes beside the forecast.

Run: python benchmarks/training/profile_gpu.py --out FILE.json [--pictures FOLDER]
On a machine without a GPU the same with small models, so that it can be tried out.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from datetime import date
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from stepladder.cli.results.profile_plots import plot_causes, plot_memory
from stepladder.measure import record_timeline
from stepladder.model import build
from stepladder.planner import forecast, forecast_moments
from stepladder.train import climb
from stepladder.train.profile_steps import suggestion_context

GPU = torch.cuda.is_available()
MODEL = (
    "gpt:layers=12,hidden=1024,heads=16,vocab=32768,sequence=1024"
    if GPU
    else "gpt:layers=2,hidden=128,heads=4,vocab=256,sequence=64"
)
ROWS = 8 if GPU else 4
PLANS = ("fp32", "bf16", "bf16 compile=on", "bf16 recompute=blocks") if GPU else ("fp32",)


def case(words: str, pictures: Path | None) -> dict[str, Any]:
    plan = f"{words} batch={ROWS} micro={ROWS}"
    run = climb(build(MODEL), loss="cross_entropy", optimizer="adamw lr=1e-4", plan=plan)
    length = int(MODEL.rpartition("=")[2])
    tokens = torch.randint(0, 256, (ROWS, length), device=run.world.device)
    found = run.profile(repeat((tokens, tokens)), steps=5)
    context = suggestion_context(run)
    said = moments = None
    if context.facts and context.cluster:
        settled = run.plan.settle(1)
        said = forecast(context.facts, settled, context.cluster, context.calibration)
        moments = forecast_moments(context.facts, settled, context.cluster, context.calibration)
    entry = {
        **found.to_dict(),
        "unexplained_share": found.unexplained_seconds / found.step_seconds,
        "forecast": said and said.to_dict(),
    }
    if "compile" not in words:
        memory = record_timeline(
            lambda: run.step((tokens, tokens)).read(), run.module, run.optimizer, run.world.device,
            vocab=int(MODEL.partition("vocab=")[2].partition(",")[0]),
        )  # fmt: skip
        entry["memory"] = {name: each.by_owner() for name, each in memory.at.items()}
        entry["holders"] = [asdict(holder) for holder in memory.holders]
        if pictures:
            plot_memory(pictures / f"memory-{words.replace(' ', '-')}.png", memory, moments or ())
    if pictures:
        plot_causes(pictures / f"causes-{words.replace(' ', '-')}.png", found, said)
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if GPU else platform.processor() or platform.machine()
    found: dict[str, Any] = {
        "date": date.today().isoformat(), "device": device, "torch": torch.__version__,
        "model": MODEL, "rows": ROWS, "cases": {},
    }  # fmt: skip
    for words in PLANS:
        entry = found["cases"][words] = case(words, options.pictures)
        print(
            f"{words:24} step {entry['step_seconds'] * 1e3:8.2f} ms  unexplained "
            f"{entry['unexplained_share']:.2%}  overhead {entry['overhead']:.2f} x  "
            f"{entry['bound']}",
            flush=True,
        )
        options.out.write_text(json.dumps(found, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
