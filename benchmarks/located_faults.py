"""`verify parity --locate`: planted faults found in the right module, and no alarm without one.

Run: python benchmarks/located_faults.py            writes results/located_faults.json and .md
     python benchmarks/located_faults.py --json     prints the result too
     python benchmarks/located_faults.py --go-on    keeps the rows of a run that was stopped

Every fault of parity/planted_faults.py is planted in the objects of a real run on gloo ranks of
this machine's processor, and must be located to the kind of tensor, the module and, where it is
one rank's, the rank that it was planted in. Then architectures of the zoo, and two built-in models,
are trained without a fault under every plan that takes them: each run in which a tensor is named
is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
sys.path.insert(0, str(Path(__file__).parent / "parity"))

from architectures import make_problem
from planted_faults import FAULTS, Fault, subject_of, watch_planted
from stepladder.launch import Ranks
from stepladder.train.user_code.batch_as_source import rows_of
from stepladder.verify import Subject, find_subject
from stepladder.verify.course import has_batch_statistics, make_course
from stepladder.verify.live_module import fit_rows, read_plans
from stepladder.verify.locate.difference import Location
from stepladder.verify.locate.find_first import locate_course

RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "located_faults.json"
STEPS = 2
PLANS = (
    "fp32 ddp", "fp32 zero1", "fp32 zero3 recompute=blocks", "bf16 zero2", "fp32 micro=2",
    "fp32 tensor=2", "fp32 pipeline=2", "fp32 context=2",
)  # fmt: skip
BUILT_IN = ("resnet-tiny", "gpt:layers=2,hidden=32,heads=2,vocab=64")
FOREIGN = (
    *("lstm", "graph_network", "two_tower_recommender", "autoencoder"),
    *("gpt2", "llama", "qwen3", "gemma2", "phi", "opt", "gpt_neox", "mixtral", "mamba"),
    *("bert", "albert", "t5", "vit", "convnext"),
)
MODULES = BUILT_IN + FOREIGN
OPTIMIZER = "sgd lr=0.05"


def locate_faults(pool: Ranks, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    kept = {row["fault"]: row for row in known}
    for name, fault in FAULTS.items():
        if name in kept:
            yield kept[name]
            continue
        course = make_course(subject_of(fault), fault.plan, fault.optimizer, steps=STEPS)
        found = locate_course(pool, course, partial(watch_planted, name))
        yield {"fault": name, "plan": fault.plan, **judged(fault, found)}


def judged(fault: Fault, found: Location) -> dict[str, Any]:
    expected = {"kind": fault.kind, "module": fault.module, "rank": fault.rank}
    if (first := found.difference) is None:
        return {"expected": expected, "located": False, "problem": found.problem}
    right = (first.kind, first.module) == (fault.kind, fault.module)
    return {
        "expected": expected,
        "located": right and (fault.rank is None or first.rank == fault.rank),
        "tensor": first.name,
        "step": first.step,
        "micro_batch": first.micro_batch,
        "rank": first.rank,
        "off": first.distance,
        "allowed": first.allowed,
        "inputs": first.inputs,
    }


def run_clean(pool: Ranks, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    kept = {(row["module"], row["plan"]): row for row in known}
    for module in MODULES:
        for plan in PLANS:
            if row := kept.get((module.split(":")[0], plan)):
                yield row
                continue
            subject = clean_subject(module, masks="context" not in plan)
            statistics = has_batch_statistics(subject)
            if statistics and ("micro" in plan or "pipeline" in plan):
                continue  # results depend on the micro-batch there, and it would be named
            rows = len(subject.made()[1])
            asked = read_plans(plan)
            fitted = fit_rows(asked, min(rows, 16), cut=not statistics)[0]
            found = locate_course(pool, make_course(subject, fitted, OPTIMIZER, steps=STEPS))
            alarm = "" if found.difference is None else str(found.difference)
            yield {
                "module": module.split(":")[0], "plan": plan, "refused": found.problem,
                "alarm": alarm, "compared": found.compared, "same_bits": found.same_bits,
                "left_out": len(found.left_out),
            }  # fmt: skip


def clean_subject(name: str, masks: bool) -> Subject:
    if name in BUILT_IN:
        return find_subject(name)
    return Subject(name, partial(make_foreign, name, masks))


def make_foreign(name: str, masks: bool) -> Any:
    problem = make_problem(name, masks=masks)
    return problem.module, rows_of(problem.batches[0]), problem.loss


def measure(known: dict[str, Any]) -> dict[str, Any]:
    """All rows; each is kept as it is done, with those that are known."""
    found: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"CPU, {os.cpu_count()} cores, {platform.machine()}, gloo, "
        f"torch {torch.__version__}",
        "steps": STEPS,
        "faults": [],
        "clean": [],
    }
    with Ranks(2, threads=1) as pool:
        for name, rows in (("faults", locate_faults), ("clean", run_clean)):
            for row in rows(pool, known.get(name, [])):
                found[name].append(row)
                KEPT.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(found: dict[str, Any]) -> str:
    faults, clean = found["faults"], found["clean"]
    ran = [row for row in clean if not row["refused"]]
    alarms = [row for row in ran if row["alarm"]]
    lines = [
        "# The first tensor that differs",
        "",
        "    python benchmarks/located_faults.py",
        "",
        f"date {found['date']}, machine {found['machine']}, {found['steps']} steps.",
        "",
        f"{sum(row['located'] for row in faults)} of {len(faults)} planted faults are located to "
        f"the right module. {len(alarms)} false alarms in {len(ran)} runs without a fault, over "
        f"{len({row['module'] for row in ran})} modules.",
        "",
        "| fault | plan | first tensor that differs | rank | off by | explained | inputs | |",
        "|---|---|---|---|---:|---:|---|---|",
        *map(fault_row, faults),
        "",
        "Runs without a fault, with the number of tensors that were compared:",
        "",
        f"| module | {' | '.join(PLANS)} |",
        f"|---|{'---:|' * len(PLANS)}",
        *(clean_row(module.split(":")[0], clean) for module in MODULES),
    ]
    return "\n".join(lines) + "\n"


def fault_row(row: dict[str, Any]) -> str:
    if "tensor" not in row:
        return f"| {row['fault']} | `{row['plan']}` | none {row['problem']} | | | | | MISSED |"
    rank = "" if row["rank"] is None else row["rank"]
    verdict = "located" if row["located"] else "WRONG"
    return (
        f"| {row['fault']} | `{row['plan']}` | {row['tensor']} | {rank} | {row['off']:.0e} | "
        f"{row['allowed']:.0e} | {row['inputs']} | {verdict} |"
    )


def clean_row(module: str, clean: list[dict[str, Any]]) -> str:
    mine = {row["plan"]: row for row in clean if row["module"] == module}
    return f"| {module} | {' | '.join(clean_cell(mine.get(plan)) for plan in PLANS)} |"


def clean_cell(row: dict[str, Any] | None) -> str:
    if row is None or row["refused"]:
        return "" if row is None else "refused"
    return "ALARM" if row["alarm"] else str(row["compared"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the result")
    parser.add_argument("--go-on", action="store_true", help="keep the rows there are")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    found = measure(json.loads(KEPT.read_text()) if options.go_on and KEPT.exists() else {})
    (RESULTS / "located_faults.md").write_text(table(found))
    print(json.dumps(found) if options.json else table(found))
    clean = [row for row in found["clean"] if row["alarm"]]
    raise SystemExit(0 if not clean and all(row["located"] for row in found["faults"]) else 1)


if __name__ == "__main__":
    main()
