"""Whether real architectures compute under every plan what a plain torch loop computes.

    python benchmarks/zoo_parity.py [--only NAME,NAME] [--plans ddp,zero3] [--again] [--json]

Each architecture is built at a tiny size from a config or a library (transformers, torchvision,
timm, diffusers) or by hand, with random weights and without dropout, and trained for three steps
of plain SGD without clipping, on rows of different lengths where it reads text. The oracle is a
plain torch loop over whole batches on one device, which shares no code with the engine; for bf16
it runs under torch's autocast. Context parallelism refuses padding masks, so its rows have none.
Every parameter and buffer and every loss is compared; a tensor's difference is a share of how far
the plain loop moved it. ZeRO 1, ZeRO 3, tensor and pipeline cells also save before the last step
and resume into other weights, which must give the same numbers.

A cell is "same" with its largest difference, "refused" before the first step with the reason,
"not applicable" where the architecture lacks what the plan cuts, or BROKEN. BatchNorm sees one
micro-batch at a time under micro and pipeline, which a run announces: there the plain loop goes by
the same micro-batches, and the cell is "same by micro-batch". Cells are kept in results/zoo.json as
long as the package is the same, so a stopped run goes on; BROKEN ones and those of other sources
are compared again, and --again compares all. A cell that was never compared is "not run".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "zoo"))

from architectures import ARCHITECTURES, make_problem
from on_rank import Trained, free_groups, train_on_rank
from oracle import Plain, largest_difference, train_plain
from stepladder.launch import Ranks
from table import find_source, read_cells, summarise, write_table

MICRO = 2  # rows of a micro-batch
PLANS = {  # the plan's text and its ranks
    "ddp": ("fp32 ddp", 2),
    "zero1": ("fp32 zero1", 2),
    "zero2": ("fp32 zero2", 2),
    "zero3": ("fp32 zero3", 2),
    "tensor": ("fp32 tensor=2", 2),
    "pipeline": (f"fp32 pipeline=2 micro={MICRO}", 2),
    "context": ("fp32 context=2", 2),
    "micro": (f"fp32 micro={MICRO}", 1),
    "recompute": ("fp32 recompute=blocks", 1),
    "bf16": ("bf16", 1),
    "compile": ("fp32 compile=on", 1),
}
RESUMES = ("zero1", "zero3", "tensor", "pipeline")  # each saves other parts of the state
TOLERANCE = 1e-3  # of how far the plain loop moved a tensor; of a loss
RESUMED = 1e-6  # after a resume, absolute
BF16_ROUNDINGS = 2.0  # times what bf16 itself costs: autocast's distance from fp32
BF16_LEAST = 0.02
TIMEOUT_SECONDS = 600.0  # the compiler takes minutes on a busy machine


@dataclass(frozen=True, slots=True)
class Cell:
    """One architecture under one plan."""

    verdict: str  # same, same by micro-batch, refused, not applicable, BROKEN
    reason: str = ""
    difference: float | None = None  # of the tensor that differs most
    loss: float | None = None
    resumed: float | None = None
    tolerance: float = TOLERANCE
    seconds: float = 0.0
    source: str = ""  # of the package that was compared: git's hash of its folder


def main() -> int:
    options = read_options()
    # For the ranks as well: hundreds of cells would repeat what libraries warn of once a process.
    os.environ.update(PYTHONWARNINGS="ignore", TRANSFORMERS_VERBOSITY="error")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cells, source = read_cells(), find_source()
    todo = [
        (name, plan)
        for name in options.only
        for plan in options.plans
        if options.again or is_due(cells.get(name, {}).get(plan), source)
    ]
    lock, done = threading.Lock(), iter(range(1, len(todo) + 1))

    def report(name: str, plan: str, cell: Cell) -> None:
        with lock:
            cells.setdefault(name, {})[plan] = {**asdict(cell), "source": source}
            write_table(cells, list(ARCHITECTURES), list(PLANS), __doc__ or "", source)
            shown = f"{cell.verdict} {cell.reason}".strip() + numbers(cell)
            print(
                f"[{next(done)}/{len(todo)}] {name} x {plan}: {shown}", file=sys.stderr, flush=True
            )

    names = [name for name in options.only if any(name == one for one, _ in todo)]
    parts = [names[start :: options.jobs] for start in range(options.jobs)]
    with ThreadPoolExecutor(options.jobs) as pool:
        each = [[pair for pair in todo if pair[0] in part] for part in parts]
        list(pool.map(lambda pairs: compare_all(pairs, report), each))
    chosen = {name: {p: cells[name][p] for p in options.plans} for name in options.only}
    print(json.dumps(chosen, indent=1) if options.json else summarise(chosen))
    return (
        1 if any(c["verdict"] == "BROKEN" for row in chosen.values() for c in row.values()) else 0
    )


def is_due(cell: dict[str, Any] | None, source: str) -> bool:
    return cell is None or cell["verdict"] == "BROKEN" or cell.get("source") != source


def read_options() -> argparse.Namespace:
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("--only", default="", help="architectures, with commas between them")
    reader.add_argument("--plans", default="", help=f"of {','.join(PLANS)}")
    reader.add_argument("--again", action="store_true", help="compare cells that are there, too")
    reader.add_argument("--json", action="store_true", help="print the cells as JSON")
    reader.add_argument("--jobs", type=int, default=1, help="architectures at a time")
    options = reader.parse_args()
    options.only = chosen(reader, options.only, list(ARCHITECTURES))
    options.plans = chosen(reader, options.plans, list(PLANS))
    return options


def chosen(reader: argparse.ArgumentParser, text: str, known: list[str]) -> list[str]:
    named = [word for word in text.split(",") if word]
    if unknown := [word for word in named if word not in known]:
        reader.error(f"'{unknown[0]}' is none of {', '.join(known)}")
    return named or known


def compare_all(pairs: list[tuple[str, str]], report: Callable[[str, str, Cell], None]) -> None:
    waits = {"left_alone_seconds": 60.0, "grace_seconds": 5.0}
    with Ranks(2, threads=1, between_calls=free_groups, **waits) as pool:
        for name, plan in pairs:
            report(name, plan, compare(pool, name, plan))


def compare(pool: Ranks, name: str, plan: str) -> Cell:
    """One cell: the plan's ranks beside the plain loop."""
    began = time.perf_counter()
    text, ranks = PLANS[plan]
    absent = make_problem(name).absent
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        saved = Path(folder) if plan in RESUMES else None
        try:
            found = pool.call(
                train_on_rank, name, text, plan != "context", saved,
                ranks=ranks, timeout_seconds=TIMEOUT_SECONDS,
            )  # fmt: skip
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            cell = Cell("BROKEN", f"{type(error).__name__}: {first}"[:300])
        else:
            cell = judge(name, plan, found, absent)
    return Cell(**{**asdict(cell), "seconds": round(time.perf_counter() - began, 1)})


def judge(name: str, plan: str, found: list[Trained], absent: dict[str, str]) -> Cell:
    refusals = [one.refused for one in found]
    if all(refusals):
        if plan in absent:
            return Cell("not applicable", absent[plan])
        return Cell("refused", refusals[0])
    if any(refusals):
        return Cell("BROKEN", f"one rank refused, another trained: {max(refusals)}")
    bf16, by_micro = plan == "bf16", found[0].by_micro_batch
    plain = plain_run(name, bf16=bf16, masks=plan != "context", micro=MICRO if by_micro else None)
    tolerance = bf16_tolerance(name) if bf16 else TOLERANCE
    differences = [largest_difference(plain, one.tensors) for one in found]
    difference, worst = max(differences)
    loss = max(
        abs(mine - theirs) / max(abs(theirs), 1e-6)
        for one in found
        for mine, theirs in zip(one.losses, plain.losses, strict=True)
    )
    resumed = max((one.resumed for one in found if one.resumed is not None), default=None)
    missing = plain.last.keys() - {key for one in found for key in one.tensors}
    problems = [
        f"no rank has {', '.join(sorted(missing)[:3])}" if missing else "",
        f"{worst} differs by {difference:.1e}" if not difference <= tolerance else "",
        f"the loss differs by {loss:.1e}" if not loss <= tolerance else "",
        f"off by {resumed:.1e} after a resume" if resumed is not None and resumed > RESUMED else "",
    ]
    reason = "; ".join(filter(None, problems))
    verdict = "BROKEN" if reason else "same by micro-batch" if by_micro else "same"
    return Cell(verdict, reason, difference, loss, resumed, tolerance)


@lru_cache(maxsize=4)
def plain_run(
    name: str, *, bf16: bool = False, masks: bool = True, micro: int | None = None
) -> Plain:
    return train_plain(name, bf16=bf16, masks=masks, micro=micro)


def bf16_tolerance(name: str) -> float:
    """What rounding to bf16 costs this architecture, measured without the engine, with room."""
    apart, _ = largest_difference(plain_run(name), plain_run(name, bf16=True).last)
    return max(BF16_ROUNDINGS * apart, BF16_LEAST)


def numbers(cell: Cell) -> str:
    each = {"tensors": cell.difference, "loss": cell.loss, "resume": cell.resumed}
    said = ", ".join(f"{what} {value:.1e}" for what, value in each.items() if value is not None)
    return f" ({said}; {cell.seconds} s)" if said else f" ({cell.seconds} s)"


if __name__ == "__main__":
    sys.exit(main())
