"""`stepladder plan --rehearse`: memory and time of one plan from its very step, beside the
formula's."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import GIB, signed_percent, size, table
from stepladder.cli.user_code_options import announce, read_user_code
from stepladder.hardware import Cluster
from stepladder.plan import Plan
from stepladder.plan.reference import Reference
from stepladder.record import Calibration, Forecast, Rehearsal
from stepladder.workload import Facts
from stepladder.workload.shape import FAMILIES

if TYPE_CHECKING:
    from stepladder.rehearse import StepTime
    from stepladder.rehearse.named_subject import RehearsalSubject
    from stepladder.rehearse.rehearsed_plan import RehearsedPlan

TENSORS = 6  # of the largest that are listed


def configure_rehearsal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="also run the plan's step on tensors without numbers: its memory by module",
    )


def rehearse_named(
    options: argparse.Namespace,
    facts: Facts,
    cluster: Cluster,
    plan: Plan,
    by_formula: Forecast,
    calibration: Calibration | None = None,
) -> RehearsedPlan:
    """Rehearse the plan of the model that the command names."""
    with loading():
        from stepladder.rehearse.rehearsed_plan import rehearse_plan

    return rehearse_plan(subject_of(options, facts), facts, cluster, plan, by_formula, calibration)


def subject_of(options: argparse.Namespace, facts: Facts) -> RehearsalSubject:
    from stepladder.rehearse.named_subject import subject_of_code, subject_of_name

    if Reference.parse(options.model, taken=FAMILIES) is None:
        return subject_of_name(options.model, facts.tokens)
    code = read_user_code(options, options.model).complete()
    announce(code.taken)
    return subject_of_code(code, options.sequence)


def show_rehearsal(found: RehearsedPlan, by_formula: Forecast) -> None:
    """The rehearsed peaks beside the formula's, by owner; the moment and tensors of the peak."""
    most = found.ranks[0]
    formula, real = by_formula.memory.by_owner(), most.memory.by_owner()
    real["context"] = formula["context"]  # of the driver: no rehearsal sees it
    rows: list[list[object]] = [
        [owner.replace("_", " "), gib(real[owner]), gib(formula[owner])]
        for owner in real
        if real[owner] + formula[owner]
    ]
    for words, mine, theirs in totals(most, by_formula):
        rows.append([words, gib(mine), gib(theirs)])
    which = f": rank {most.rank} of {most.ranks} needs most" if most.ranks > 1 else ""
    print(f"Rehearsed in {found.seconds:.1f} s{which}")
    table("", ["GiB a device", "rehearsed", "formula"], rows)
    apart = by_formula.memory.allocated_bytes / most.allocated_bytes - 1
    print(f"The formula's allocated peak is {signed_percent(apart)} off the rehearsed one.")
    if found.time:
        show_time(found.time, by_formula)
    print(f"The peak is in {most.phase}, at {most.module or 'the root of the module'}.")
    tensors = [
        [
            size(one.num_bytes),
            one.owner,
            one.module or "-",
            one.phase,
            "x".join(map(str, one.shape)),
        ]
        for one in most.largest[:TENSORS]
    ]
    table("Largest at the peak", ["size", "owner", "made in", "during", "shape"], tensors)
    for other in found.ranks[1:]:
        print(f"rank {other.rank}: {other.reserved_bytes / GIB:.2f} GiB reserved.")
    for note in most.notes:
        print(note)
    if found.limit_bytes is not None and not found.fits:
        show_end(found, found.limit_bytes)
    print()


def show_time(found: StepTime, by_formula: Forecast) -> None:
    low, high = found.interval.low, found.interval.high
    said = f", {by_formula.time.step_seconds:.3g} s by the formula" if by_formula.time else ""
    print(
        f"A step takes {found.step_seconds:.3g} s by its {found.kernels:,} kernels, between "
        f"{low:.3g} and {high:.3g} nine times in ten{said}; asking for them takes the host "
        f"{found.host_seconds:.3g} s."
    )


def show_end(found: RehearsedPlan, limit_bytes: int) -> None:
    """Why it does not fit, and what each of the cheapest changes frees."""
    print(f"Rehearsed, it DOES NOT FIT.\n{found.ranks[0].where_it_ends(limit_bytes)}")
    rows = [
        [one.words, gib(one.freed_bytes), gib(one.rehearsal.reserved_bytes), one.fits]
        for one in found.changes
    ]
    if rows:
        columns = ["change", "frees GiB", "then reserves", "fits"]
        table("Changes, cheapest first, each rehearsed", columns, rows, ["change"])


def totals(most: Rehearsal, by_formula: Forecast) -> list[tuple[str, int, int]]:
    context = by_formula.memory.context
    return [
        ("allocated peak", most.allocated_bytes, by_formula.memory.allocated_bytes),
        ("reserved peak", most.reserved_bytes, by_formula.memory.reserved_bytes),
        ("in use on the device", most.reserved_bytes + context, by_formula.memory.peak_bytes),
    ]


def gib(num_bytes: int) -> float:
    return round(num_bytes / GIB, 3)


def rehearsal_json(found: RehearsedPlan) -> dict[str, Any]:
    """The same for programs."""
    return {
        "rehearsal": {
            "seconds": found.seconds,
            "fits": found.fits,
            "ranks": [one.to_dict() for one in found.ranks],
            "time": asdict(found.time) if found.time else None,
            "changes": [one.to_dict() for one in found.changes],
        }
    }
