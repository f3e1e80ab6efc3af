"""Loss of every faster plan beside plain bf16 over the same steps on the same text.

    python benchmarks/parity/parity_gpu.py [MODEL ...] [--plan PLAN ...] [--out FOLDER]

Models: llama and gpt; without a name, both. Without a plan, all of a model's; its first, against
which others are held, runs always. Rows of what does not run this time stay in the table.

The text is the Python standard library's own source, two bytes a token (65,536 words), so that the
vocabulary is large enough for the fused loss. Written to parity_gpu.json: the mean loss of the last
20 steps, of held-out text, and their ratios to the model's first plan's. Exits 1 where one is off
by 1 %. Packages that are optional (torchao) are also found in the folders STEPLADDER_EXTRAS names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

sys.path[:0] = [p for p in os.environ.get("STEPLADDER_EXTRAS", "").split(os.pathsep) if p]

import torch  # noqa: E402

import stepladder as sl  # noqa: E402
from stepladder.model import build  # noqa: E402

FAST = "compile=on kernels=on"
SIZES = "layers=4,hidden=1024,heads=16,vocab=65536,sequence=512,tied=1"
TOY = "layers=2,hidden=32,heads=2,vocab=65536,sequence=64,tied=1"
MODELS = {
    "llama": (
        ",kv_heads=16,ffn=4096",
        ("bf16", f"fp8-master {FAST}", f"bf16-master {FAST}", f"bf16-master {FAST} graphs=on",
         f"bf16 {FAST}"),
    ),
    "gpt": (
        "", ("bf16", f"bf16-master {FAST}", f"bf16-master {FAST} graphs=on", f"bf16 {FAST}"),
    ),
}  # fmt: skip
ALLOWED = 0.01


def tokens() -> torch.Tensor:
    """The standard library's source, two bytes a token."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    pairs = torch.frombuffer(bytearray(text[: len(text) // 2 * 2]), dtype=torch.uint8).long()
    return pairs[0::2] * 256 + pairs[1::2]


def batches(words: torch.Tensor, number: int, rows: int, length: int) -> list[tuple]:
    draw = torch.Generator().manual_seed(0)
    made = []
    for _ in range(number):
        starts = torch.randint(0, len(words) - length - 1, (rows,), generator=draw).tolist()
        cut = torch.stack([words[start : start + length + 1] for start in starts])
        made.append((cut[:, :-1].contiguous(), cut[:, 1:].contiguous()))
    return made


def learn(model: str, plan: str, device: str, steps: int) -> dict[str, object]:
    toy = device == "cpu"
    shape = f"{model}:{TOY}" if toy else f"{model}:{SIZES}{MODELS[model][0]}"
    rows, length = (4, 64) if toy else (32, 512)
    words = tokens()
    held_out, learned = words[: len(words) // 10], words[len(words) // 10 :]
    torch.manual_seed(0)
    run = sl.climb(
        build(shape), loss="cross_entropy", plan=plan, device=device,
        optimizer="adamw lr=6e-4 wd=0.1 clip=1", rate=f"cosine warmup=30 steps={steps}",
    )  # fmt: skip
    begun = time.perf_counter()
    losses = [
        report.loss for report in [run.step(b) for b in batches(learned, steps, rows, length)]
    ]
    seconds = time.perf_counter() - begun
    unseen = run.evaluate(batches(held_out, 4, rows, length))
    return {"model": model, "plan": plan, "last": mean(losses[-20:]), "unseen": unseen,
            "losses": losses, "seconds": seconds}  # fmt: skip


def plans_of(model: str, device: str, wanted: list[str]) -> list[str]:
    first, *others = MODELS[model][1] if device == "cuda" else ("bf16", "bf16 kernels=on")
    return [first, *(plan for plan in others if not wanted or plan in wanted)]


def measure(model: str, plans: list[str], device: str, steps: int) -> Iterator[dict]:
    """A row for each plan that runs, against the first."""
    first: dict | None = None
    for plan in plans:
        try:
            row = learn(model, plan, device, steps)
        except Exception as error:  # one plan that does not run must not cost the others
            print(f"{plan:44} {type(error).__name__}: {error}"[:600], flush=True)
            continue
        first = first or row
        for key in ("last", "unseen"):
            row[f"{key}_off"] = row[key] / first[key] - 1
        print(
            f"{model:6} {plan:44} last 20: {row['last']:.4f} ({row['last_off']:+.2%})  unseen: "
            f"{row['unseen']:.4f} ({row['unseen_off']:+.2%})  {row['seconds']:.0f} s", flush=True,
        )  # fmt: skip
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    parser.add_argument("--plan", action="append", default=[], help="one of a model's; repeatable")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    about = {"date": time.strftime("%Y-%m-%d"), "machine": name, "torch": torch.__version__,
             "steps": options.steps}  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "parity_gpu.json"
    models = options.models or list(MODELS)
    plans = {model: plans_of(model, device, options.plan) for model in models}
    rows = [r for r in kept_rows(path) if r["plan"] not in plans.get(r["model"], ())]
    worst = 0.0
    for model in models:
        for row in measure(model, plans[model], device, options.steps):
            worst = max(worst, abs(row["last_off"]))
            rows.append({**about, **row})
            path.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return int(worst > ALLOWED)


def kept_rows(path: Path) -> list[dict]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
