"""What a search for the best plan found: tables for people, and the same as plain values."""

from __future__ import annotations

import argparse
from typing import Any

from stepladder.cli.results.plan_command import show_forecast, to_run
from stepladder.cli.results.price import Priced, hourly
from stepladder.cli.results.tables import GIB, digits, percent, table
from stepladder.hardware import Cluster
from stepladder.planner.explain import Explanation
from stepladder.planner.search_result import Choices
from stepladder.record import Forecast
from stepladder.workload import Facts

AMOUNTS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def show_search(
    choices: Choices, explanation: Explanation, options: argparse.Namespace, priced: Priced
) -> None:
    show_head(choices.facts, choices.cluster, priced)
    seconds = choices.forecasts[0].time is not None
    shown = choices.forecasts[: None if options.all else 8]
    rows = [ranked_row(found) for found in shown]
    title = (
        f"{choices.num_plans:,} plans for a batch of {choices.batch:,}; {len(choices.ranked):,} fit"
    )
    rate = f"{priced.unit}/s/device"
    table(title, ["plan", rate, "MFU", "step s", "memory GiB", "fits to", "$/h"], rows, ["plan"])
    priced.show(shown)
    if not seconds:
        remedy = "'stepladder calibrate' there measures one"
        print(f"Time is unknown: the table has no peak for {choices.cluster.device}; {remedy}.\n")
    print(f"Best: {choices.forecasts[0].plan}\n")
    show_forecast(choices.forecasts[0], priced)
    ranks = choices.best.plan.layout.num_ranks
    print(to_run(options, choices.facts, choices.cluster, choices.forecasts[0].plan, ranks), "\n")
    verdicts = explanation.families if options.all else explanation.families[:6]
    if verdicts:
        lost = [[v.family, lost_by(v.slower), v.reason, str(v.plan)] for v in verdicts]
        table(
            "Why the others lose",
            ["family", "slower", "reason", "its best plan"],
            lost,
            ["its best plan"],
        )
    if explanation.next_rungs:
        print("Next rung")
        print("\n".join(f"  {line}" for line in explanation.next_rungs))
    if options.all:
        rejected = [[str(each.plan), each.reason] for each in choices.rejected]
        table("Every plan that was left out", ["plan", "reason"], rejected)


def show_head(facts: Facts, cluster: Cluster, priced: Priced) -> None:
    per, flops = facts.unit.removesuffix("s"), facts.flops_per_token
    active = facts.active_parameters
    meets = f" ({amount(active)} active)" if active < facts.parameters else ""
    size = f"{amount(facts.parameters)} parameters{meets}"
    work = f"{digits(flops / 1e9)} GFLOP a {per}" if flops else "FLOPs unknown"
    print(f"{facts.name}: {size}, {work}")
    print(f"{cluster}")
    for assumption in cluster.assumptions:
        print(f"  assumed: {assumption}")
    print(priced.rent(cluster))


def amount(number: float) -> str:
    """A count of parameters, as people say it."""
    unit, name = next((each for each in AMOUNTS if number >= each[0]), (1, ""))
    return f"{digits(number / unit)} {name}".rstrip()


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
        hourly(found),
    ]


def lost_by(share: float | None) -> str:
    return "does not fit" if share is None else f"{share:.1%}"


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
