"""How fast `plan="auto"` trains modules of other projects, against the loop a user would write.

    python benchmarks/zoo_gpu.py [--only NAME,NAME] [--arms ARM,ARM] [--warm N | --table]

Arms: "hand" is a loop with autocast to bf16, torch.compile of forward and loss together, gradient
clipping and fused AdamW; "hand max" compiles with max-autotune-no-cudagraphs, "hand channels-last"
stores images and convolutions channels-last. "auto" is stepladder with `sample=`; any other arm is
a plan's text. All arms of a module start from the same weights, learn from the same batches, and
take turns. A row is written to results/zoo_gpu.json as soon as it is known. With --warm N torch's
compile caches are filled first, by N processes beside each other that time nothing; modules are
then timed one by one until --seconds are over. No choice of an earlier start is remembered. With
--table only the table of the rows that are there, results/zoo_gpu.md, and its plot are made.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_map

import stepladder as sl

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from compile_cache import fill
from real_sizes import CASES, Case

RESULTS = Path(__file__).parent / "results" / "zoo_gpu.json"
TURNS, TURN_SECONDS, LOSSES = 5, 0.4, 50
WARM_STEPS = 4  # enough to meet a second length, with which torch compiles for all
GIB = 2**30


class Hand:
    """The loop a user would write."""

    def __init__(self, case: Case, *, mode: str | None = None, channels_last: bool = False) -> None:
        self.layout = torch.channels_last if channels_last else torch.preserve_format
        self.module = copy.deepcopy(case.module).cuda()
        if channels_last:
            self.module.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.loss = torch.compile(lambda batch: case.plain_loss(self.module, batch), mode=mode)

    def step(self, batch: Any) -> torch.Tensor:
        batch = tree_map(self.move, batch)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def move(self, one: torch.Tensor) -> torch.Tensor:
        there = one.cuda(non_blocking=True)
        return there.to(memory_format=self.layout) if one.dim() == 4 else there


class Ours:
    """stepladder, with a plan or with "auto"."""

    def __init__(self, case: Case, plan: str) -> None:
        module = copy.deepcopy(case.module)
        self.run = sl.climb(
            module, loss=case.loss, optimizer="adamw lr=1e-4 clip=1 wd=0.01", plan=plan,
            sample=case.batch,
        )  # fmt: skip

    def step(self, batch: Any) -> Callable[[], float]:
        report = self.run.step(batch)
        return lambda: report.loss


ARMS: dict[str, Callable[[Case], Any]] = {
    "hand": Hand,
    "hand max": lambda case: Hand(case, mode="max-autotune-no-cudagraphs"),
    "hand channels-last": lambda case: Hand(case, channels_last=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--arms", default="hand,auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--warm", type=int, default=0, metavar="N")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    modules, arms = options.only.split(","), options.arms.split(",")
    began = time.monotonic()
    os.environ["STEPLADDER_PROBE"] = "off"  # forecasts need it, and trials do not
    if options.compile:
        case = pinned_case(modules[0])
        compile_all(case, arms_for(case, arms))
        return 0
    if options.warm:
        fill(Path(__file__), modules, options.arms, options.warm, options.seconds / 2)
    with TemporaryDirectory() as choices:
        os.environ["XDG_CACHE_HOME"] = choices
        for name in [] if options.table else modules:
            if time.monotonic() - began > options.seconds:
                print(f"{name}: no time was left")
                continue
            case = pinned_case(name)
            measure(name, case, arms_for(case, arms), options.results)
            torch.compiler.reset()
    if options.results.exists():
        show(options.results)
    return 0


def pinned_case(name: str) -> Case:
    torch.manual_seed(0)
    case = CASES[name]()
    batch, later = tree_map(torch.Tensor.pin_memory, (case.batch, case.later))
    return Case(case.module, batch, case.loss, later)


def arms_for(case: Case, arms: list[str]) -> list[str]:
    """Without what makes no difference to this module: an entry that cuts patches is no net."""
    convolutions = sum(isinstance(part, torch.nn.Conv2d) for part in case.module.modules())
    return [arm for arm in arms if convolutions > 2 or arm != "hand channels-last"]


def make_loop(arm: str, case: Case) -> Any:
    return ARMS[arm](case) if arm in ARMS else Ours(case, arm)


def compile_all(case: Case, arms: list[str]) -> None:
    """Have the compiler's caches filled with all that these arms may need; nothing is timed."""
    trial = "stepladder.train.tuning.trial"
    with (
        patch(f"{trial}.ROUND_SECONDS", 0.0),
        patch(f"{trial}.WARM_STEPS", 1),
        patch("stepladder.kernels.matmul.matmul.best_algorithm", lambda *given: None),
    ):
        for arm in arms:
            loop = make_loop("auto tune=600" if arm == "auto" else arm, case)
            for batch in islice(cycle(case.batches), WARM_STEPS):
                read(loop.step(batch))
            del loop
            gc.collect()
            torch.cuda.empty_cache()


def measure(name: str, case: Case, arms: list[str], results: Path) -> None:
    """Time every arm of one module and write a row for each."""
    rows: dict[str, dict[str, Any]] = {}
    loops: dict[str, Any] = {}
    for arm in arms:
        gc.collect()
        torch.cuda.synchronize()
        before, began = torch.cuda.memory_allocated(), time.monotonic()
        row = rows[arm] = {"module": name, "arm": arm}
        try:
            loop = make_loop(arm, case)
            batches = cycle(case.batches)
            read(loop.step(next(batches)))
            row["first_step_seconds"] = round(time.monotonic() - began, 2)
            row["losses"] = [read(loop.step(batch)) for batch in islice(batches, LOSSES)]
        except Exception as error:  # a module may fail in any way, and the others go on
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            continue
        finally:
            gc.collect()
        torch.cuda.synchronize()
        loops[arm] = loop, torch.cuda.memory_allocated() - before
        if isinstance(loop, Ours):
            row |= {"plan": str(loop.run.plan), "because": loop.run.because}
    times: dict[str, list[float]] = {arm: [] for arm in loops}
    for _ in range(TURNS):
        for arm, (loop, resident) in loops.items():
            seconds, peak = take_turn(loop, cycle(case.batches), len(case.batches))
            times[arm].append(seconds)
            own = peak - (torch.cuda.memory_allocated() - resident)
            rows[arm]["gib"] = round(max(own / GIB, rows[arm].get("gib", 0)), 2)
    for arm, row in rows.items():
        if times.get(arm):
            row["ms"] = round(1e3 * statistics.median(times[arm]), 3)
        row |= {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
                "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
    keep(list(rows.values()), results)


def take_turn(loop: Any, batches: Iterator[Any], lengths: int) -> tuple[float, int]:
    """Seconds of a step, and the most memory that was in use; each length as often as any other."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began, steps = time.perf_counter(), 0
    while steps < 4 or steps % lengths or time.perf_counter() - began < TURN_SECONDS:
        loop.step(next(batches))
        steps += 1
        if steps % 4 == 0:
            torch.cuda.synchronize()  # so that a queue of steps does not outlast the turn
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps, torch.cuda.max_memory_allocated()


def read(loss: Any) -> float:
    return float(loss()) if callable(loss) else float(loss)


def keep(rows: list[dict[str, Any]], results: Path) -> None:
    old = json.loads(results.read_text()) if results.exists() else []
    new = {(row["module"], row["arm"]) for row in rows}
    left = [row for row in old if (row["module"], row["arm"]) not in new]
    results.write_text(json.dumps(left + rows, indent=1) + "\n")


def show(results: Path) -> None:
    """Print and write each module's speed as a multiple of the best hand-written loop's."""
    rows = json.loads(results.read_text())
    ratios: dict[str, float] = {}
    lines = [
        "| module | hand-written, ms | `auto`, ms | × | losses differ by | memory, × | plan |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["module"] for row in rows):
        timed = {row["arm"]: row for row in rows if row["module"] == name and "ms" in row}
        hand = [row for arm, row in timed.items() if arm.startswith("hand")]
        if not hand or "auto" not in timed:
            continue
        best, ours = min(hand, key=lambda row: row["ms"]), timed["auto"]
        ratios[name] = best["ms"] / ours["ms"]
        known = best.get("gib") and ours.get("gib")
        memory = f"{ours['gib'] / best['gib']:.2f}" if known else "not measured"
        words = ours["plan"].partition(" 'optimizer")[0]
        lines.append(
            f"| {name} | {best['ms']:.1f} | {ours['ms']:.1f} | {ratios[name]:.3f} | "
            f"{largest_difference(best['losses'], ours['losses']):.1e} | {memory} | `{words}` |"
        )
    if not ratios:
        return
    mean = statistics.geometric_mean(ratios.values())
    where = {(row["gpu"], row["torch"], row["date"]) for row in rows}
    said = "; ".join(f"{gpu}, torch {version}, {date}" for gpu, version, date in sorted(where))
    hands = sorted({row["arm"] for row in rows if row["arm"].startswith("hand")})
    worst = min(ratios.values())
    head = [
        "# `auto` on modules of other projects",
        "",
        f"`python benchmarks/zoo_gpu.py` on {said}. Above 1 is faster than the best hand-written "
        f"loop (tried: {', '.join(hands)}). Geometric mean of {len(ratios)} modules {mean:.3f}, "
        f"worst {worst:.3f}. Losses: the largest relative difference over {LOSSES} steps (with "
        "dropout, of other random numbers).",
        "",
    ]
    notes = [f"- {row['module']}: {row['note']}" for row in rows if "note" in row]
    text = "\n".join([*head, *lines, "", *notes]).rstrip() + "\n"
    print(text)
    results.with_suffix(".md").write_text(text)
    plot(ratios, results.with_suffix(".png"))


def plot(ratios: dict[str, float], path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        return
    ordered = sorted(ratios, key=ratios.__getitem__)
    figure = Figure(figsize=(8, 0.32 * len(ordered) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(ordered, [ratios[name] for name in ordered], color="tab:green")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel("speed of plan=auto, as a multiple of the best hand-written loop's")
    axes.margins(x=0.08)
    figure.savefig(path, dpi=120)


def largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(one, other))


if __name__ == "__main__":
    raise SystemExit(main())
