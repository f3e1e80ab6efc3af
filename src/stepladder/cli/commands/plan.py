"""Which plan trains this model fastest on that cluster: what fits, how fast, at what price, and why
every other plan loses. Nothing is run and no device is needed.

MODEL is a preset (llama3-8b), a shape (llama:layers=32,hidden=4096,heads=32), the config.json of a
Hugging Face model, resnet50, or your own: file.py:make or package.module:make, which is traced on
one batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.cli.import_torch import loading
from stepladder.cli.plan_from_other_projects import (
    configure_foreign,
    left_json,
    read_foreign,
    show_left,
)
from stepladder.cli.results.price import Priced, configure_price, read_price
from stepladder.cli.results.tables import GIB, as_json, percent, table
from stepladder.cli.user_code_options import (
    MODEL,
    announce,
    configure_user_code,
    read_user_code,
)
from stepladder.errors import PlanError, RecordError
from stepladder.hardware import Cluster
from stepladder.plan import Batch, Plan
from stepladder.plan.foreign.conversion import ConvertedPlan
from stepladder.plan.reference import Reference
from stepladder.planner import check_plan, forecast, search
from stepladder.planner.explain import Explanation, explain
from stepladder.planner.search_result import Choices
from stepladder.record import Calibration, Forecast, calibration_path, load_calibration
from stepladder.workload import Facts, find_facts
from stepladder.workload.shape import FAMILIES

BAR = 60  # characters of a bar
MARKS = "█▓▒░▚▞▤▥▦▧"
DOES_NOT_FIT = NOT_WHOLE = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"resnet50, a config.json, {MODEL}")
    configure_user_code(parser)
    parser.add_argument(
        "--on", required=True, metavar="CLUSTER", help="'8 nodes x 8 H100', or here"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="sequences in one step")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens in a sequence")
    configure_foreign(parser)
    configure_price(parser)
    parser.add_argument("--calibration", metavar="FILE", help="what 'stepladder calibrate' wrote")
    parser.add_argument("--all", action="store_true", help="also every loser and why")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--save", metavar="FILE.toml", help="keep the plan for 'stepladder train'")
    parser.add_argument("--plot", metavar="FILE.png", help="draw memory and time")


def run(options: argparse.Namespace) -> int:
    facts = facts_of(options)
    cluster = Cluster.detect() if options.on == "here" else Cluster.parse(options.on)
    calibration = measured_speeds(options, cluster)
    if options.batch is not None and options.batch < 1:
        raise PlanError("batch", f"{options.batch} is not a number of sequences", "Use 1 or more.")
    priced = read_price(options, facts, cluster)
    carried = read_foreign(options)
    if options.plan or carried:
        plan = carried.plan if carried else Plan.parse(options.plan)
        return run_one(options, facts, cluster, calibration, plan, carried, priced)
    choices = search(facts, cluster, batch=options.batch, calibration=calibration)
    best, explanation = choices.best.plan, explain(choices)
    keep(options, best, choices.forecasts)
    if options.json:
        as_json(search_json(choices, explanation, options, priced))
    else:
        show_search(choices, explanation, options, priced)
    return 0


def facts_of(options: argparse.Namespace) -> Facts:
    """The model as numbers: by its name, or traced where it is the user's own."""
    if Reference.parse(options.model, taken=FAMILIES) is None:
        if given := [name for name in ("sample", "data", "loss") if getattr(options, name)]:
            problem = f"is for a model of your own, and {options.model} is known by its name"
            raise PlanError(given[0], problem, "Leave it out, or name file.py:make.")
        return find_facts(options.model, options.sequence)
    with loading():
        from stepladder.train.user_code.trace_user_model import trace_user_model

    code = read_user_code(options, options.model).complete(loss=False)
    announce(code.taken)
    return trace_user_model(code, options.sequence)


def measured_speeds(options: argparse.Namespace, cluster: Cluster) -> Calibration | None:
    """What was measured: in the file that was named, or by this user on such a device."""
    if options.calibration:
        named = Calibration.load(options.calibration)
        if named.device not in ("", cluster.device.name):
            problem = f"{options.calibration} was measured on {named.device}, not {cluster.device}"
            raise PlanError("calibration", problem, "Name one that was measured there, or none.")
        return named
    found = load_calibration(cluster.device.name)
    if found and not options.json:
        print(f"Speeds of {cluster.device} as measured: {calibration_path(cluster.device.name)}")
    return found


def run_one(
    options: argparse.Namespace,
    facts: Facts,
    cluster: Cluster,
    calibration: Calibration | None,
    plan: Plan,
    carried: ConvertedPlan | None,
    priced: Priced,
) -> int:
    """Forecast the plan that was given."""
    if options.batch is not None:
        plan = replace(plan, batch=Batch(options.batch, plan.batch.micro, plan.batch.micro_batches))
    plan = check_plan(facts, plan, cluster)
    found = forecast(facts, plan, cluster, calibration)
    keep(options, plan, (found,))
    if options.json:
        said = left_json(carried) if carried else {}
        as_json({**found.to_dict(), **priced.record(found), **said})
    else:
        show_head(facts, cluster)
        print(f"\n{found.plan}\n")
        if carried:
            show_left(carried)
        show_forecast(found, priced)
    if carried and not carried.complete:
        return NOT_WHOLE
    return 0 if found.fits else DOES_NOT_FIT


def keep(options: argparse.Namespace, plan: Plan, forecasts: Iterable[Forecast]) -> None:
    if options.save:
        try:
            Path(options.save).write_text(plan.to_toml())
        except OSError as refused:
            problem = f"{options.save} cannot be written ({refused.strerror})"
            raise RecordError("save", problem, "Name another file.") from refused
    if options.plot:
        plot(list(forecasts)[:8], options.plot)


def show_search(
    choices: Choices, explanation: Explanation, options: argparse.Namespace, priced: Priced
) -> None:
    show_head(choices.facts, choices.cluster)
    seconds = choices.forecasts[0].time is not None
    shown = choices.forecasts[: None if options.all else 8]
    rows = [ranked_row(found) for found in shown]
    title = (
        f"{choices.num_plans:,} plans for a batch of {choices.batch:,}; {len(choices.ranked):,} fit"
    )
    rate = f"{priced.unit}/s/device"
    table(title, ["plan", rate, "MFU", "step s", "memory GiB", "fits to"], rows)
    priced.show(shown)
    if not seconds:
        remedy = "'stepladder calibrate' there measures one"
        print(f"Time is unknown: the table has no peak for {choices.cluster.device}; {remedy}.\n")
    print(f"Best: {choices.forecasts[0].plan}\n")
    show_forecast(choices.forecasts[0], priced)
    verdicts = explanation.families if options.all else explanation.families[:6]
    if verdicts:
        lost = [[v.family, lost_by(v.slower), v.reason, str(v.plan)] for v in verdicts]
        table("Why the others lose", ["family", "slower", "reason", "its best plan"], lost)
    if explanation.next_rungs:
        print("Next rung")
        print("\n".join(f"  {line}" for line in explanation.next_rungs))
    if options.all:
        rejected = [[str(each.plan), each.reason] for each in choices.rejected]
        table("Every plan that was left out", ["plan", "reason"], rejected)


def show_head(facts: Facts, cluster: Cluster) -> None:
    per, flops = facts.unit.removesuffix("s"), facts.flops_per_token
    active = facts.active_parameters
    meets = f" ({active / 1e9:.3g} B active)" if active < facts.parameters else ""
    size = f"{facts.parameters / 1e9:.3g} B parameters{meets}"
    work = f"{flops / 1e9:.3g} GFLOP a {per}" if flops else "FLOPs unknown"
    print(f"{facts.name}: {size}, {work}")
    print(f"{cluster}")
    for assumption in cluster.assumptions:
        print(f"  assumed: {assumption}")


def ranked_row(found: Forecast) -> list[object]:
    rate, time = found.tokens_per_second_per_device, found.time
    limit = found.memory_limit_bytes
    return [
        found.plan,
        None if rate is None else round(rate),
        percent(found.mfu),
        None if time is None else round(time.step_seconds, 3),
        round(found.memory.peak_bytes / GIB, 1),
        "unknown" if limit is None else f"{found.memory.peak_bytes / limit:.0%}",
    ]


def lost_by(share: float | None) -> str:
    return "does not fit" if share is None else f"{share:.1%}"


def show_forecast(found: Forecast, priced: Priced) -> None:
    """Two bars and the numbers that follow from them."""
    limit = found.memory_limit_bytes
    room = f" of {limit / GIB:.1f}" if limit else ""
    owners = {owner: size / GIB for owner, size in found.memory.by_owner().items()}
    fits = "fits" if found.fits else "DOES NOT FIT"
    span = ""
    if found.peak_bytes is not None and found.memory.reserved:
        span = f", between {found.peak_bytes.low / GIB:.1f} and {found.peak_bytes.high / GIB:.1f}"
        span += " nine times in ten"
    bar(f"memory  {found.memory.peak_bytes / GIB:.1f}{room} GiB, {fits}{span}", owners, "GiB")
    if found.time is not None and found.step_seconds is not None:
        low, high = found.step_seconds.low, found.step_seconds.high
        span = f"between {low:.3g} and {high:.3g} nine times in ten"
        bar(f"time    {found.time.step_seconds:.3g} s a step, {span}", found.time.by_cause(), "s")
        rate = found.tokens_per_second_per_device or 0.0
        print(f"{rate:,.0f} {priced.unit}/s a device, MFU {percent(found.mfu)}")
    for reason in found.reasons:
        print(reason)
    print(f"{priced.line(found)}\n")


def bar(title: str, parts: Mapping[str, float], unit: str) -> None:
    """One stacked bar and its legend, largest first."""
    whole = sum(parts.values()) or 1.0
    seen = sorted(((n, s) for n, s in parts.items() if s / whole >= 0.005), key=lambda p: -p[1])
    drawn = "".join(mark * round(size / whole * BAR) for (_, size), mark in zip(seen, MARKS))
    legend = [f"{m} {n.replace('_', ' ')} {s:.3g} {unit}" for (n, s), m in zip(seen, MARKS)]
    print(f"{title}\n  {drawn}\n  {'  '.join(legend)}")


def search_json(
    choices: Choices, explanation: Explanation, options: argparse.Namespace, priced: Priced
) -> dict[str, Any]:
    verdicts = [
        {"family": v.family, "plan": str(v.plan), "reason": v.reason, "slower": v.slower}
        for v in explanation.families
    ]
    rejected = [{"plan": str(each.plan), "reason": each.reason} for each in choices.rejected]
    return {
        "model": choices.facts.name,
        "parameters": choices.facts.parameters,
        "active_parameters": choices.facts.active_parameters,
        "cluster": str(choices.cluster),
        "assumptions": list(choices.cluster.assumptions),
        "batch": choices.batch,
        "plans": choices.num_plans,
        "fit": len(choices.ranked),
        "ranked": [{**f.to_dict(), **priced.record(f)} for f in choices.forecasts],
        "why": list(explanation.why),
        "families": verdicts,
        "next_rungs": list(explanation.next_rungs),
        **({"rejected": rejected} if options.all else {}),
    }


def plot(forecasts: list[Forecast], path: str) -> None:
    """Memory by owner and time by cause, one bar a plan."""
    from stepladder.cli.results.plots import figure, store

    drawn, (memory, time) = figure(14.0, 1.5 + 0.6 * len(forecasts), 2)
    plans = [found.plan for found in forecasts]
    owners = [{o: s / GIB for o, s in f.memory.by_owner().items()} for f in forecasts]
    stack(memory, plans, owners)
    limit = forecasts[0].memory_limit_bytes
    if limit:
        memory.axvline(limit / GIB, color="black", linewidth=1)
    memory.set_xlabel("GiB on the fullest rank")
    stack(time, [""] * len(plans), [f.time.by_cause() if f.time else {} for f in forecasts])
    time.set_xlabel("seconds of a step")
    store(drawn, path)


def stack(axes: Any, names: list[str], bars: list[dict[str, float]]) -> None:
    positions = range(len(names))
    left = [0.0] * len(names)
    for part in bars[0]:
        sizes = [each.get(part, 0.0) for each in bars]
        if any(sizes):
            axes.barh(positions, sizes, left=left, label=part.replace("_", " "))
        left = [start + size for start, size in zip(left, sizes)]
    axes.set_yticks(positions, names, fontsize=7)
    axes.invert_yaxis()
    axes.legend(fontsize=7)
