"""Whether every plan computes what one device computes, and holds the bytes that are forecast.

    python benchmarks/parity/parity_table.py [--only TEXT] [--go-on] [--steps 10]

Each row runs one plan on real processes (gloo, on this machine's processor) under plain SGD and
under AdamW with clipping, and holds losses, gradient norms and parameters against one device's.
The training state each rank holds is held against the planner's arithmetic. Writes
results/parity.json and results/parity.md after every row; --go-on keeps the rows that are there.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch

from parity_plans import MODELS, every_plan
from stepladder.data import SampleOrder, load_batch
from stepladder.errors import ModelError
from stepladder.launch import Ranks
from stepladder.model import describe
from stepladder.plan import Plan
from stepladder.planner import forecast_state
from stepladder.record import Memory
from stepladder.train import facts_for
from stepladder.verify import Sameness, find_subject
from stepladder.verify.course import Course, make_course
from stepladder.verify.parity_trial import ADAMW, SGD, compare_course
from stepladder.verify.parity_verdict import Plain
from stepladder.workload import Facts

RESULTS = Path(__file__).parents[1] / "results" / "parity.json"
OWNERS = ("parameters", "gradients", "optimizer")
WORDS = ("exact", "frozen", "padding", "off")  # of measured bytes beside forecast ones
Row = dict[str, Any]
Shapes = list[tuple[torch.Size, bool]]  # of every parameter, and whether it is trainable


def main() -> int:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--only", default="", metavar="TEXT", help="rows that contain this")
    reader.add_argument("--go-on", action="store_true", help="keep rows that were compared")
    reader.add_argument("--steps", type=int, default=10)
    options = reader.parse_args()
    torch.set_num_threads(1)
    kept = read_rows() if options.go_on or options.only else {}
    chosen = [pair for pair in every_plan() if options.only in " ".join(pair)]
    if options.go_on:
        chosen = [pair for pair in chosen if kept.get(pair, {}).get("verdict") != "same"]
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        bench = Bench(Path(folder), options.steps)
        for row in bench.rows(chosen):
            kept[row["model"], row["plan"]] = row
            print(line(row), flush=True)
            write([kept[pair] for pair in every_plan() if pair in kept], options.steps)
    rows = [kept[pair] for pair in every_plan() if pair in kept]
    write(rows, options.steps)
    print(summary(rows))
    return 0 if all(row["verdict"] == "same" for row in rows) else 1


class Bench:
    """What rows share: the plain runs, and what each model costs."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps = folder, steps
        self.known: dict[str, dict[str, Plain]] = {}
        self.facts: dict[str, tuple[Facts, Shapes]] = {}

    def rows(self, pairs: list[tuple[str, str]]) -> Iterator[Row]:
        """Plans of few ranks first, so that processes are started only when they are needed."""
        sizes = {pair: self.course(*pair, SGD).plan.layout.num_ranks for pair in pairs}
        for ranks in sorted(set(sizes.values())):
            with Ranks(ranks) as pool:
                yield from (self.row(pool, *pair) for pair in pairs if sizes[pair] == ranks)

    def row(self, pool: Ranks, model: str, plan: str) -> Row:
        began = time.perf_counter()
        sgd, adamw = (self.compare(pool, model, plan, optimizer) for optimizer in (SGD, ADAMW))
        verdicts = [found.verdict for found in (sgd, adamw)]
        verdict = next((word for word in verdicts if word != "same"), "same")
        return {
            "model": model,
            "plan": plan,
            "ranks": sgd.ranks,
            "verdict": verdict,
            "problem": sgd.problem or adamw.problem,
            "sgd": figures(sgd),
            "adamw": figures(adamw),
            "state": self.state(model, plan, adamw),
            "seconds": round(time.perf_counter() - began, 1),
            "date": str(date.today()),
        }

    def is_forecast(self, model: str, plan: str, found: Sameness) -> bool:
        """Whether the bytes are forecast; what stages hold is not, where there are no blocks."""
        piped = Plan.parse(plan).layout.pipeline > 1
        return bool(found.states) and not (piped and not self.costs(model)[0].num_blocks)

    def course(self, model: str, plan: str, optimizer: str) -> Course:
        return make_course(find_subject(MODELS[model]), plan, optimizer, steps=self.steps)

    def compare(self, pool: Ranks, model: str, plan: str, optimizer: str) -> Sameness:
        place = self.folder / model
        place.mkdir(exist_ok=True)
        known = self.known.setdefault(model, {})
        return compare_course(pool, self.course(model, plan, optimizer), place, known)

    def state(self, model: str, plan: str, found: Sameness) -> dict[str, Any] | None:
        """Measured bytes of the fullest rank of each stage beside the planner's, by owner."""
        if not self.is_forecast(model, plan, found):
            return None
        facts, shapes = self.costs(model)
        settled = self.course(model, plan, ADAMW).plan
        expected = forecast_state(facts, settled)
        measured = fullest(found.states, settled)
        words = [
            judge_bytes(getattr(one, owner), getattr(other, owner), *slack(shapes, settled, owner))
            for one, other in zip(measured, expected)
            for owner in OWNERS
        ]
        return {
            "measured": [by_owner(memory) for memory in measured],
            "forecast": [by_owner(memory) for memory in expected],
            "word": max(words, key=WORDS.index),
        }

    def costs(self, model: str) -> tuple[Facts, Shapes]:
        if model not in self.facts:
            module, samples, _ = find_subject(MODELS[model]).made()
            batch = load_batch(samples, SampleOrder(len(samples)), torch.arange(2).numpy())
            shapes = [(p.shape, p.requires_grad) for p in module.parameters()]
            self.facts[model] = describe_any(module, batch), shapes
        return self.facts[model]


def describe_any(module: torch.nn.Module, batch: Any) -> Facts:
    """The module's facts by tracing it; one that looks at its numbers is run for real."""
    try:
        return facts_for(module, batch)
    except ModelError:
        return describe(module, sample=batch, probe=True)


def figures(found: Sameness) -> dict[str, Any]:
    if found.problem:
        return {}
    return {
        "loss": found.loss,
        "norm": found.norm,
        "parameters": found.parameters,
        "worst": found.worst,
        "tolerance": found.tolerance,
    }


def by_owner(memory: Memory) -> dict[str, int]:
    return {owner: getattr(memory, owner) for owner in OWNERS}


def fullest(states: tuple[Memory, ...], plan: Plan) -> list[Memory]:
    """Of each stage, what the rank that holds most holds."""
    stages: list[list[Memory]] = [[] for _ in range(plan.layout.pipeline)]
    for rank, state in enumerate(states):
        stages[plan.layout.place(rank)["pipeline"]].append(state)
    return [
        Memory(**{owner: max(getattr(state, owner) for state in stage) for owner in OWNERS})
        for stage in stages
    ]


def slack(shapes: Shapes, plan: Plan, owner: str) -> tuple[float, float]:
    """Bytes that may be missing of a forecast and those that may be more.

    The forecast takes every parameter for trainable, and slices for even: a frozen one has no
    gradient, and a slice is rounded up to whole rows, or to whole numbers under ZeRO 1.
    """
    ways = plan.layout.shard * plan.layout.context
    if not plan.zero or (plan.zero == 1 and owner != "optimizer"):
        ways = 1
    frozen = spare = 0.0
    for shape, trainable in shapes:
        rows, width = (shape[0], math.prod(shape[1:])) if plan.zero >= 2 else (math.prod(shape), 1)
        spare += (math.ceil(rows / ways) - rows / ways) * width
        if plan.layout.tensor > 1 and ways > 1:
            spare += width  # a cut comes before the slices, and rounds first
        if owner != "parameters" and not trainable:
            frozen += math.prod(shape) / ways
    each = 4 * (2 if owner == "optimizer" else 1)
    return frozen * each, spare * each


def judge_bytes(measured: int, forecast: int, missing: float, spare: float) -> str:
    if measured == forecast:
        return "exact"
    if measured == round(forecast - missing):
        return "frozen"
    return "padding" if -missing - 1 <= measured - forecast <= spare + 1 else "off"


def read_rows() -> dict[tuple[str, str], Row]:
    if not RESULTS.exists():
        return {}
    rows = json.loads(RESULTS.read_text())["rows"]
    return {(row["model"], row["plan"]): row for row in rows}


def write(rows: list[Row], steps: int) -> None:
    heading = {
        "date": str(date.today()),
        "machine": f"{platform.processor() or platform.machine()}, gloo",
        "torch": torch.__version__,
        "steps": steps,
    }
    RESULTS.write_text(json.dumps({**heading, "rows": rows}, indent=1) + "\n")
    table = "\n".join(line(row) for row in rows)
    said = ", ".join(f"{name} {value}" for name, value in heading.items())
    text = f"# Parity\n\n{__doc__}\n{said}.\n\n{summary(rows)}\n\n{HEAD}\n{table}\n"
    RESULTS.with_suffix(".md").write_text(text)


HEAD = (
    "| model | plan | ranks | SGD: loss | norm | parameters | AdamW and clip: loss | norm "
    "| verdict | state bytes a rank: parameters, gradients, optimizer | forecast |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---|---|---|"
)


def line(row: Row) -> str:
    names = [("sgd", "loss"), ("sgd", "norm"), ("sgd", "parameters"), ("adamw", "loss"),
             ("adamw", "norm")]  # fmt: skip
    numbers = [f"{row[of][name]:.1e}" if row[of] else "" for of, name in names]
    verdict = row["problem"] or row["verdict"]
    state = row["state"]
    held = " / ".join(", ".join(map(str, m.values())) for m in state["measured"]) if state else ""
    cells = [row["model"], row["plan"], row["ranks"], *numbers, verdict, held]
    return "| " + " | ".join(map(str, [*cells, state["word"] if state else ""])) + " |"


def summary(rows: list[Row]) -> str:
    verdicts = Counter(row["verdict"] for row in rows)
    states = Counter(row["state"]["word"] for row in rows if row["state"])
    each = {
        precision: max(
            (row["sgd"]["loss"] for row in rows
             if row["sgd"] and row["plan"].startswith(precision + " ")
             and "compress" not in row["plan"]),
            default=math.nan,
        )
        for precision in ("fp32", "bf16", "fp16")
    }  # fmt: skip
    worst = ", ".join(f"{name} {value:.1e}" for name, value in each.items())
    counted = ", ".join(f"{count} {word}" for word, count in verdicts.items())
    bytes_ = ", ".join(f"{count} {word}" for word, count in states.items())
    return f"{len(rows)} plans: {counted}. Largest loss difference, SGD: {worst}. State: {bytes_}."


if __name__ == "__main__":
    sys.exit(main())
