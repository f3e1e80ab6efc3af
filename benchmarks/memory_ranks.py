"""Memory of every rank, counted while it trains over gloo, beside what one process rehearsed of it.

    python benchmarks/memory_ranks.py [--ranks 2,4,8] [--model NAME] [--plan TEXT] [--out FILE.json]

Counted are the tensors of the rank's process, from its model to its third step, by code that shares
nothing with the rehearsal; compared are a rank of each kind and the last. Rows that stand in
FILE.json already are left as they are.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "memory"), str(HERE / "planner")]

import torch  # noqa: E402

from count_allocations import OPTIMIZER, count_step  # noqa: E402
from rank_cases import EVERY, make  # noqa: E402
from stepladder.errors import StepladderError  # noqa: E402
from stepladder.launch import Ranks  # noqa: E402
from stepladder.plan import Plan  # noqa: E402
from stepladder.plan.refit import spread  # noqa: E402
from stepladder.rehearse import rehearse  # noqa: E402
from stepladder.rehearse.fake_world import Broadcasts  # noqa: E402
from stepladder.rehearse.rehearse_kinds import ranks_of_kinds  # noqa: E402

RESULTS = HERE / "results" / "memory_ranks.json"
KIB, ASKED = 2**10, 0.02


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--ranks", default="2,4,8")
    reader.add_argument("--model")
    reader.add_argument("--plan")
    reader.add_argument("--out", type=Path, default=RESULTS)
    options = reader.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    known = {(row["model"], row["ranks"], row["plan"]) for row in kept["rows"]}
    wanted = [int(number) for number in options.ranks.split(",")]
    for model, ranks, plan in EVERY:
        chosen = options.model in (None, model) and options.plan in (None, plan)
        if not chosen or ranks not in wanted or (model, ranks, plan) in known:
            continue
        named = {"model": model, "ranks": ranks, "plan": plan}
        kept["rows"].append({**named, **row_of(**named)})
        print(line_of(kept["rows"][-1]), flush=True)
        kept |= {
            "date": time.strftime("%Y-%m-%d"), "machine": platform.machine(),
            "torch": torch.__version__,
        }  # fmt: skip
        options.out.write_text(json.dumps(kept, indent=0))
    options.out.with_suffix(".md").write_text(page(kept))


def row_of(model: str, ranks: int, plan: str) -> dict[str, Any]:
    """What every rank took and what was rehearsed of it, or why there is no such number."""
    try:
        with Ranks(ranks, threads=1) as workers:
            counted = workers.call(counted_on_rank, model, plan, ranks=ranks, init_method="env://")
        which = kinds(plan, ranks)
        return {
            "counted": [counted[rank] for rank in which], "of_ranks": which,
            "rehearsed": rehearsed(model, ranks, plan, which),
        }  # fmt: skip
    except StepladderError as refused:
        return {"failed": str(refused)[:200]}


def counted_on_rank(model: str, plan: str) -> int:
    module, batch, loss = make(model)
    return count_step(module, plan, batch, loss)


def kinds(plan: str, ranks: int) -> list[int]:
    """The first rank of each kind, and the last of all, whose slices are the smallest."""
    layout = spread(Plan.parse(plan), ranks).layout.settle(ranks)
    return sorted({*ranks_of_kinds(layout), ranks - 1})


def rehearsed(model: str, ranks: int, plan: str, which: list[int]) -> list[int]:
    module, batch, loss = make(model)
    broadcasts = Broadcasts()
    return [
        rehearse(
            module, plan, sample=batch, loss=loss, optimizer=OPTIMIZER, ranks=ranks, rank=rank,
            device="cpu", broadcasts=broadcasts,
        ).allocated_bytes
        for rank in which
    ]  # fmt: skip


def furthest(row: dict[str, Any]) -> float:
    """The error of the rank that is furthest off."""
    errors = [a / b - 1 for a, b in zip(row["rehearsed"], row["counted"], strict=True)]
    return max(errors, key=abs)


def line_of(row: dict[str, Any]) -> str:
    cells = [row["model"], str(row["ranks"]), row["plan"]]
    if "failed" in row:
        return f"| {' | '.join(cells)} | | | {row['failed']} |"
    cells += [f"{max(row[way]) / KIB:,.0f}" for way in ("counted", "rehearsed")]
    cells.append(f"{furthest(row):+.2%}")
    return f"| {' | '.join(cells)} |"


def page(kept: dict[str, Any]) -> str:
    rows = kept["rows"]
    errors = [abs(furthest(row)) for row in rows if "counted" in row]
    within = sum(error <= ASKED for error in errors)
    said = (
        f"{len(errors)} plans: the rank that is furthest off, median {median(errors):.2%}, most "
        f"{max(errors):.2%}; {within} within {ASKED:.0%}."
        if errors
        else "Nothing was counted."
    )
    return "\n".join(
        [
            "# Memory of ranks: counted over gloo, and rehearsed by one process\n",
            f"{kept['date']}, {kept['machine']}, torch {kept['torch']}. Command: "
            "`python benchmarks/memory_ranks.py`.\n",
            f"{said}\n",
            "| model | ranks | plan | counted KiB, largest rank | rehearsed | furthest rank off |",
            "|---|---:|---|---:|---:|---:|",
            *map(line_of, rows),
            "",
        ]
    )


if __name__ == "__main__":
    main()
