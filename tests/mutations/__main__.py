"""Mutations of the code that decides what is computed and kept, each to be caught by the gate.

    .venv/bin/python -m tests.mutations

Copies `src`, breaks one line at a time, and runs the gate's tests of that part (never the soak).
A mutation that survives is a hole in the gate: exit code 1. The table of results is written to
benchmarks/results/mutations.md.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "benchmarks" / "results" / "mutations.md"


@dataclass(frozen=True)
class Mutation:
    part: str  # what it breaks, in words
    file: str  # under src/stepladder
    right: str
    wrong: str
    tests: str  # words for pytest


MUTATIONS = (
    Mutation("engine: micro-batches are not weighted by their targets", "rungs/accumulate.py",
             "weight := self.weight(part) if counts else 0.0",
             "weight := 1.0 / len(padded) if counts else 0.0", "tests/train/test_engine.py"),
    Mutation("engine: the mean over ranks is not made a sum", "rungs/accumulate.py",
             "scale(times(weighted, self.gradient_sync.ways))", "scale(weighted)",
             "tests/parity/test_plans.py -k sgd"),
    Mutation("engine: the gradient norm misses the other ranks' shards",
             "train/optimizer/gradient_norm.py",
             "each[mine] = world.sum(each[mine], *kind[1])", "each[mine] = each[mine]",
             "tests/parity/test_plans.py -k adamw"),
    Mutation("loss: ignored targets are counted", "loss/loss.py",
             "return batch.valid - (batch.leading if self.shifted else 0)",
             "return batch.num_rows", "tests/loss tests/rungs/test_accumulate.py"),
    Mutation("loss: a trial takes rows of one shape for the same rows", "rungs/trial_rows.py",
             "flat.view(torch.uint8).numpy().tobytes()", "b''",
             "tests/loss tests/rungs/test_loss_trial.py"),
    Mutation("loss: a trial never expects noise", "rungs/loss_trial.py",
             "        self.may_draw = True\n", "        self.may_draw = False\n",
             "tests/rungs/test_loss_trial.py"),
    Mutation("ZeRO 1: updated slices are not gathered", "rungs/data_parallel/zero1.py",
             "gather_tensor(real(everything), real(mine), group=group)",
             "everything.copy_(mine.repeat(ways))",
             "tests/parity/test_plans.py -k zero1"),
    Mutation("ZeRO 2 and 3: every rank starts from weights of its own",
             "rungs/data_parallel/broadcast_parameters.py",
             "dist.broadcast(", "(lambda *_, **__: 0)(",
             "tests/rungs/data_parallel/test_broadcast_parameters.py"),
    Mutation("tensor: a column-parallel input's gradient is not summed",
             "rungs/tensor/tensor_parallel.py",
             "source=between, target=Replicate(), gradient=Partial())",
             "source=between, target=Replicate(), gradient=Replicate())",
             "tests/parity/test_plans.py -k tensor"),
    Mutation("pipeline: tied weights keep one stage's gradient",
             "rungs/pipeline/tied_parameters.py",
             "dist.all_reduce(local(parameter.grad), group=self.groups[first])", "pass",
             "tests/rungs/pipeline"),
    Mutation("checkpoint: a save is not marked as committed", "checkpoint/commit.py",
             '(partial / f".{COMMITTED}").rename(partial / COMMITTED)', "pass",
             "tests/checkpoint"),
    Mutation("checkpoint: the newest is not named", "checkpoint/commit.py",
             '(root / f".{LATEST}").rename(root / LATEST)', "pass",
             "tests/checkpoint tests/train/checkpointing/test_save.py"),
)  # fmt: skip


def main() -> int:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for mutation in MUTATIONS:
            began = time.monotonic()
            caught = is_caught(mutation, Path(folder) / "tree")
            rows.append((mutation, caught, time.monotonic() - began))
            print(f"{'caught' if caught else 'SURVIVED'}: {mutation.part}", flush=True)
    TABLE.write_text(table(rows))
    return 0 if all(caught for _, caught, _ in rows) else 1


def is_caught(mutation: Mutation, tree: Path) -> bool:
    """Whether the gate's tests fail on a copy of the project with one line broken."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("src", "tests", "benchmarks", "pyproject.toml"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        tree.mkdir(exist_ok=True)
        copy(source, tree / name)
    broken = tree / "src" / "stepladder" / mutation.file
    text = broken.read_text()
    assert text.count(mutation.right) >= 1, f"{mutation.file} has no {mutation.right!r}"
    broken.write_text(text.replace(mutation.right, mutation.wrong))
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", *mutation.tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stdout[-2000:]
    return done.returncode == 1


def table(rows: list[tuple[Mutation, bool, float]]) -> str:
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    lines = [
        "# Mutations",
        "",
        f"`python -m tests.mutations`, {time.strftime('%Y-%m-%d')}, {where}. Each breaks one line "
        "of `src`; the gate's tests of that part must fail.",
        "",
        "| mutation | tests | caught | seconds |",
        "|---|---|---|---|",
    ]
    for mutation, caught, seconds in rows:
        answer = "yes" if caught else "**no**"
        lines.append(f"| {mutation.part} | `{mutation.tests}` | {answer} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
