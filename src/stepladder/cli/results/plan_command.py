"""How `stepladder plan` shows one forecast, and what it prints below: the command that trains with
a plan that fits, or the changes that would make one fit."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepladder.cli.results.price import Priced, hourly
from stepladder.cli.results.tables import GIB, percent, table
from stepladder.cli.user_code_options import KEYS
from stepladder.hardware import Cluster
from stepladder.plan.reference import Reference
from stepladder.planner.remedies import Remedy
from stepladder.record import Forecast
from stepladder.workload import Facts
from stepladder.workload.shape import FAMILIES

BAR = 60  # characters of a bar
MARKS = "█▓▒░▚▞▤▥▦▧"


def show_forecast(found: Forecast, priced: Priced) -> None:
    """Two bars and the numbers that follow from them."""
    limit = found.memory_limit_bytes
    room = f" of {limit / GIB:.1f}" if limit else ""
    owners = {owner: size / GIB for owner, size in found.memory.by_owner().items()}
    fits = "fits" if found.fits else "DOES NOT FIT"
    span, risk = "", ""
    if found.peak_bytes is not None and found.memory.reserved:
        span = f", between {found.peak_bytes.low / GIB:.1f} and {found.peak_bytes.high / GIB:.1f}"
        span += " nine times in ten"
        risk = over_limit(found.peak_bytes.high, limit) if found.fits else ""
    bar(f"memory  {found.memory.peak_bytes / GIB:.1f}{room} GiB, {fits}{span}", owners, "GiB")
    if risk:
        print(risk)
    if found.time is not None and found.step_seconds is not None:
        low, high = found.step_seconds.low, found.step_seconds.high
        span = f"between {low:.3g} and {high:.3g} nine times in ten"
        bar(f"time    {found.time.step_seconds:.3g} s a step, {span}", found.time.by_cause(), "s")
        rate = found.tokens_per_second_per_device or 0.0
        print(f"{rate:,.0f} {priced.unit}/s a device, MFU {percent(found.mfu)}")
    if found.expert_sent_bytes is not None:
        sent = found.expert_sent_bytes / GIB
        print(f"{sent:.3g} GiB a step from each rank to the experts of others and back")
    for reason in found.reasons:
        print(reason)
    print(f"{priced.line(found)}\n")


def over_limit(high: float, limit: int | None) -> str:
    """A sentence where the upper end of the forecast passes the limit."""
    if limit is None or high <= limit:
        return ""
    return (
        f"The upper end, {high / GIB:.1f} GiB, passes the limit of {limit / GIB:.1f}: "
        "it may run out of memory. A smaller micro-batch or recompute=blocks leaves more room."
    )


def bar(title: str, parts: Mapping[str, float], unit: str) -> None:
    """One stacked bar and its legend, largest first."""
    whole = sum(parts.values()) or 1.0
    seen = sorted(((n, s) for n, s in parts.items() if s / whole >= 0.005), key=lambda p: -p[1])
    drawn = "".join(mark * round(size / whole * BAR) for (_, size), mark in zip(seen, MARKS))
    legend = [f"{m} {n.replace('_', ' ')} {s:.3g} {unit}" for (n, s), m in zip(seen, MARKS)]
    print(f"{title}\n  {drawn}\n  {'  '.join(legend)}")


def train_command(
    options: argparse.Namespace, facts: Facts, cluster: Cluster, plan: str, ranks: int
) -> str:
    """One line to type, on each machine where there are several."""
    model = options.model
    if Path(model).suffix == ".json":  # training takes the folder that it lies in
        model = str(Path(model).parent)
    words = ["stepladder", "train", model, *given(options), "--plan", plan]
    own = Reference.parse(model, taken=FAMILIES) is not None
    if not own and facts.unit == "tokens":
        words += ["--model.sequence", str(facts.tokens)]
    elif not own:
        words += ["--data.source", "FOLDER"]  # the built-in text is no pictures
    nodes = -(-ranks // cluster.devices_per_node)
    if ranks > 1:
        words += ["--ranks", str(ranks // nodes)]
    if nodes > 1:
        words += ["--nodes", f"{nodes}:{nodes}", "--rendezvous", "HOST:29400"]
    return shlex.join(words)


def given(options: argparse.Namespace) -> Iterator[str]:
    """The user's own code, as it was named."""
    for name in KEYS:
        if value := getattr(options, name):
            yield from (f"--{name}", value)


def to_run(
    options: argparse.Namespace, facts: Facts, cluster: Cluster, plan: str, ranks: int
) -> str:
    several = " on each machine" if ranks > cluster.devices_per_node else ""
    return f"To train with it{several}:\n  {train_command(options, facts, cluster, plan, ranks)}"


def one_json(found: Forecast, priced: Priced, remedies: Sequence[Remedy]) -> dict[str, Any]:
    """One forecast for programs, and where it does not fit, what would."""
    would = {} if found.fits else {"remedies": [each.to_dict() for each in remedies]}
    return {**found.to_dict(), **priced.record(found), **would}


def show_remedies(remedies: Sequence[Remedy]) -> None:
    """What to change of a plan that does not fit, the cheapest that does first."""
    if not remedies:
        print("No change of it fits: without --plan the fastest plan that does is found.")
        return
    rows = [
        [
            each.words,
            round(each.forecast.memory.peak_bytes / GIB, 1),
            "yes" if each.fits else "no",
            None if each.cost is None else f"{each.cost:.2f} ×",
            hourly(each.forecast),
            each.besides,
        ]
        for each in remedies
    ]
    columns = ["change", "GiB a device", "fits", "time a token", "$/h", "what else changes"]
    table("What to change, cheapest first", columns, rows, ["change", "what else changes"])
