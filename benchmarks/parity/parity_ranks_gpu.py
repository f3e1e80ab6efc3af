"""Plans of several ranks on a real GPU, against the same training on one CPU.

    PYTHONPATH=src python benchmarks/parity/parity_ranks_gpu.py [--device cuda] [--out FILE.json]
        [--kernels]

With --kernels, plans of kernels=on and a model whose head is fused with its loss.

NCCL refuses two ranks on one GPU, so several ranks share it over gloo, and one rank alone uses
NCCL. Losses, gradient norms and parameters are held against a plain run on the CPU from the same
weights on the same batches, with plain SGD and no clipping. Exits 1 where a plan computes another
thing. gloo cannot send CUDA tensors from one rank to one other, so pipelines are not here.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from stepladder.launch import Ranks
from stepladder.verify import Sameness, find_subject
from stepladder.verify.course import make_course
from stepladder.verify.parity_trial import SGD, learn_rank
from stepladder.verify.parity_verdict import Plain, judge
from stepladder.verify.reference import learn_plain, reference_key

MODEL = "llama:layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=256,sequence=32"
WIDE = MODEL.replace("vocab=256", "vocab=32770")
KERNELS = [
    "fp32 ddp replicate=2 kernels=on",
    "fp32 zero2 shard=2 kernels=on",
    "fp32 zero3 shard=2 kernels=on",
    "fp32 tensor=2 kernels=on",
    "fp32 context=2 kernels=on",
    "fp32 zero3 shard=2 tensor=2 kernels=on",
    "bf16 zero3 shard=2 kernels=on",
    "bf16 tensor=2 kernels=on",
    "fp16 tensor=2 kernels=on",
    "bf16 zero3 shard=2 compile=on kernels=on",
    "bf16 tensor=2 compile=on kernels=on",
]
PLANS = [
    "fp32 zero3 shard=1",
    "bf16 zero3 shard=1",
    "fp32 ddp replicate=2",
    "fp32 zero1 shard=2",
    "fp32 zero2 shard=2",
    "fp32 zero3 shard=2",
    "fp32 zero3 shard=2 offload=parameters",
    "fp32 tensor=2",
    "fp32 context=2",
    "bf16 zero3 shard=2 recompute=blocks",
    "fp16 ddp replicate=2",
    "fp32 hsdp replicate=2 shard=2",
    "fp32 zero3 shard=2 tensor=2",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kernels", action="store_true", help="plans of kernels=on")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cuda = options.device == "cuda"
    name = torch.cuda.get_device_name() if cuda else options.device
    rows: list[dict[str, object]] = []
    with Ranks(4) as pool, tempfile.TemporaryDirectory() as folder:
        for found in compare(pool, Path(folder), options):
            backend = "nccl" if cuda and found.ranks == 1 else "gloo"
            rows.append({"backend": backend, **describe(found)})
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                table = {"date": date.today().isoformat(), "device": name,
                         "torch": torch.__version__, "model": model_of(options),
                         "rows": rows}  # fmt: skip
                options.out.write_text(json.dumps(table, indent=1) + "\n")
    return 0 if all(row["same"] for row in rows) else 1


def compare(pool: Ranks, folder: Path, options: argparse.Namespace) -> Iterator[Sameness]:
    known: dict[str, Plain] = {}
    for plan in KERNELS if options.kernels else PLANS:
        course = make_course(find_subject(model_of(options)), plan, SGD, steps=options.steps)
        key = reference_key(course)
        if key not in known:
            known[key] = learn_plain(course, folder / f"{len(known)}.pt")
        shown = Sameness(course.name, str(course.plan.optimizer), course.plan.layout.num_ranks)
        there = replace(course, device=options.device)
        try:
            found = pool.call(learn_rank, there, known[key].weights, ranks=shown.ranks)
        except Exception as error:
            yield replace(shown, problem=f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        yield judge(shown, course.plan, known[key], found)


def model_of(options: argparse.Namespace) -> str:
    return WIDE if options.kernels else MODEL


def describe(found: Sameness) -> dict[str, object]:
    return {
        "plan": found.plan,
        "ranks": found.ranks,
        "same": found.same,
        "loss": finite(found.loss),
        "norm": finite(found.norm),
        "parameters": finite(found.parameters),
        "tolerance": found.tolerance,
        "problem": found.problem,
    }


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


if __name__ == "__main__":
    sys.exit(main())
