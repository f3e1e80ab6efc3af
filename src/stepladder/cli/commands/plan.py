"""Which plan trains this model fastest on that cluster: what fits, how fast, at what price, and why
every other plan loses. Nothing is run and no device is needed.

MODEL is a preset (llama3-8b), a shape (llama:layers=32,hidden=4096,heads=32), the config.json of a
Hugging Face model, resnet50, or your own: file.py:make or package.module:make, which is traced on
one batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from stepladder.cli.import_torch import loading
from stepladder.cli.plan_from_other_projects import (
    configure_foreign,
    left_json,
    read_foreign,
    show_left,
)
from stepladder.cli.planner_page.open_page import configure_page, open_page, require_both
from stepladder.cli.planning.measured_speeds import measured_speeds
from stepladder.cli.planning.rehearsed_plan import (
    configure_rehearsal,
    rehearsal_json,
    rehearse_named,
    show_rehearsal,
)
from stepladder.cli.planning.show_search import search_json, show_head, show_search
from stepladder.cli.results.plan_command import (
    one_json,
    show_forecast,
    show_remedies,
    to_run,
)
from stepladder.cli.results.plan_plots import plot_forecasts
from stepladder.cli.results.price import Priced, configure_price, read_price
from stepladder.cli.results.tables import as_json
from stepladder.cli.user_code_options import MODEL, announce, configure_user_code, read_user_code
from stepladder.errors import PlanError, RecordError
from stepladder.hardware import Cluster
from stepladder.plan import BatchSplit, Plan
from stepladder.plan.foreign.conversion import ConvertedPlan
from stepladder.plan.reference import Reference
from stepladder.planner import check_plan, forecast, search
from stepladder.planner.explain import explain
from stepladder.planner.parse_inputs import check_batch, cluster_of
from stepladder.planner.remedies import find_remedies
from stepladder.record import Calibration, Forecast
from stepladder.workload import Facts, find_facts
from stepladder.workload.shape import FAMILIES

DOES_NOT_FIT = NOT_WHOLE = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"resnet50, a config.json, {MODEL}"
    )
    configure_user_code(parser)
    parser.add_argument("--on", metavar="CLUSTER", help="'8 nodes x 8 H100', here, 'here x 2'")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences in one step")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens in a sequence")
    configure_foreign(parser)
    configure_price(parser)
    configure_rehearsal(parser)
    parser.add_argument(
        "--expert-load", type=float, metavar="X", help="of the busiest rank, over an even share"
    )
    parser.add_argument(
        "--calibration", metavar="FILE", help="what 'stepladder calibrate' wrote; or none"
    )
    parser.add_argument("--all", action="store_true", help="also every loser and why")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--save", metavar="FILE.toml", help="keep the plan for 'stepladder train'")
    parser.add_argument("--plot", metavar="FILE.png", help="draw memory and time")
    configure_page(parser)


def run(options: argparse.Namespace) -> int:
    if options.page:
        return open_page(options)
    require_both(options)
    facts = facts_of(options)
    check_batch(options.batch)
    cluster = cluster_of(options.on, options.price)
    calibration = measured_speeds(options, cluster)
    priced = read_price(options, facts, cluster)
    carried = read_foreign(options)
    plan = carried.plan if carried else read_plan(options.plan)
    if plan is not None:
        return run_one(options, facts, cluster, calibration, plan, carried, priced)
    if options.expert_load is not None:
        problem = "is of one plan that spreads experts, and plans are searched for"
        raise PlanError("--expert-load", problem, "Name the plan by --plan.")
    choices = search(facts, cluster, batch=options.batch, calibration=calibration)
    best, explanation = choices.best.plan, explain(choices)
    keep(options, best, choices.forecasts)
    best_forecast = choices.forecasts[0]
    rehearsed = partial(rehearse_named, options, facts, cluster, best, best_forecast, calibration)
    played = rehearsed() if options.rehearse else None
    if options.json:
        said = rehearsal_json(played) if played else {}
        as_json({**search_json(choices, explanation, options, priced), **said})
    else:
        show_search(choices, explanation, options, priced)
        if played:
            show_rehearsal(played, best_forecast)
    return DOES_NOT_FIT if played and not played.fits else 0


def read_plan(words: str | None) -> Plan | None:
    """The plan that was named; None: one is searched for, as `auto` says too."""
    if words is None or words.split() == ["auto"]:
        return None
    if not words.strip():
        raise PlanError("plan", "is empty", "Write words such as 'bf16 zero3', or leave it out.")
    if words.split()[0] == "auto":
        problem = (
            f"'{words}' leaves the rest of a plan to trials on the device, and none is run here"
        )
        raise PlanError("plan", problem, "Leave --plan out to search, or write the plan whole.")
    return Plan.parse(words)


def facts_of(options: argparse.Namespace) -> Facts:
    """The model as numbers: by its name, or traced where it is the user's own."""
    if is_named(options):
        if given := [name for name in ("sample", "data", "loss") if getattr(options, name)]:
            problem = f"is for a model of your own, and {options.model} is known by its name"
            raise PlanError(given[0], problem, "Leave it out, or name file.py:make.")
        return find_facts(options.model, options.sequence)
    with loading():
        from stepladder.train.user_code.trace_user_model import trace_user_model

    code = read_user_code(options, options.model).complete(loss=False)
    announce(code.taken)
    return trace_user_model(code, options.sequence)


def is_named(options: argparse.Namespace) -> bool:
    """Whether the model is known by a name, and is no code of the user's."""
    return Reference.parse(options.model, taken=FAMILIES) is None


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
        plan = replace(
            plan, batch=BatchSplit(options.batch, plan.batch.micro, plan.batch.micro_batches)
        )
    plan = check_plan(facts, plan, cluster)
    load = 1.0 if options.expert_load is None else options.expert_load
    found = forecast(facts, plan, cluster, calibration, expert_load=load)
    shorter = partial(find_facts, options.model) if is_named(options) else None
    remedies = (
        [] if found.fits else find_remedies(facts, plan, cluster, calibration, shorter=shorter)
    )
    keep(options, plan, (found,))
    rehearsed = partial(rehearse_named, options, facts, cluster, plan, found, calibration)
    played = rehearsed() if options.rehearse else None
    if options.json:
        said = left_json(carried) if carried else {}
        said |= rehearsal_json(played) if played else {}
        as_json({**one_json(found, priced, remedies), **said})
    else:
        show_head(facts, cluster, priced)
        print(f"\n{found.plan}\n")
        if carried:
            show_left(carried)
        show_forecast(found, priced)
        if played:
            show_rehearsal(played, found)
        if found.fits:
            print(to_run(options, facts, cluster, found.plan, plan.layout.num_ranks))
        else:
            show_remedies(remedies)
    if carried and not carried.complete:
        return NOT_WHOLE
    return 0 if found.fits and (not played or played.fits) else DOES_NOT_FIT


def keep(options: argparse.Namespace, plan: Plan, forecasts: Iterable[Forecast]) -> None:
    if options.save:
        try:
            Path(options.save).write_text(plan.to_toml())
        except OSError as refused:
            problem = f"{options.save} cannot be written ({refused.strerror})"
            raise RecordError("save", problem, "Name another file.") from refused
    if options.plot:
        plot_forecasts(options.plot, list(forecasts)[:8])
