"""Where a step's time and memory go, with a verdict: what bounds the run, what would help.

Takes a few real steps of a recipe under torch's profiler. Without a recipe: the small GPT that
`stepladder train` trains. The trace, for Perfetto or Chrome, and on a GPU the allocator's snapshot
are kept in the run folder under profile/.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import as_json, percent, table
from stepladder.cli.user_code_options import (
    MODEL,
    announce,
    configure_user_code,
    recipe_settings,
)

if TYPE_CHECKING:
    from stepladder.job import ProfileResult
    from stepladder.measure import MemoryTimeline
    from stepladder.plan import Plan, Recipe
    from stepladder.record import Forecast, Memory, Profile

MIB = 2**20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="RUN.toml|MODEL", help=f"a recipe, or {MODEL}")
    configure_user_code(parser)
    parser.add_argument("--ranks", type=int, metavar="N", help="start N ranks on this machine")
    parser.add_argument("--plan", metavar="WORDS", help="such as 'bf16 micro=4 recompute=blocks'")
    parser.add_argument("--steps", type=int, default=4, metavar="K", help="profiled steps (4)")
    parser.add_argument("--memory", action="store_true", help="memory over a step, by owner")
    parser.add_argument("--plot", metavar="FILE.png", help="the causes, beside their forecast")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(settings=True)
    parser.epilog = "Any key of the recipe can be set, as for train: --model.name llama-tiny."


def run(options: argparse.Namespace) -> int:
    from stepladder.errors import PlanError
    from stepladder.plan import read_recipe
    from stepladder.plan.automatic import written_plan

    with loading():
        from stepladder.world import Place

    options.settings = recipe_settings(options)
    recipe = read_recipe(options.model, options.settings)
    plan = written_plan(options.plan) if options.plan else recipe.plan_choice()
    for name, least in (("steps", options.steps), ("ranks", options.ranks)):
        if least is not None and least < 1:
            raise PlanError(name, f"{least} is too few to profile", "Use 1 or more.")
    if not recipe.run.folder:
        folder = time.strftime("runs/profile-%Y-%m-%d-%H%M%S")
        recipe = replace(recipe, run=replace(recipe.run, folder=folder))
    if (options.ranks or 1) > 1 and not Place.from_environment().launched:
        return start(options, recipe, plan)
    return profile(options, recipe, plan)


def start(options: argparse.Namespace, recipe: Recipe, plan: Plan | None) -> int:
    """The same command as each of N ranks, once it is known that its plan can be N ranks."""
    from pathlib import Path

    from stepladder.plan import Plan
    from stepladder.plan.automatic import automatic_words

    with loading():
        from stepladder.job.opening.plan_for_ranks import check_for_ranks, spread
        from stepladder.launch import launch_local

    chosen = spread(plan or Plan(), options.ranks)
    check_for_ranks(chosen, recipe, options.ranks, uneven=False)
    words = ["-m", "stepladder.cli.rank", "profile", *([options.model] if options.model else [])]
    words += ["--plan", automatic_words(options.plan) or str(chosen), "--steps", str(options.steps)]
    words += ["--memory"] * options.memory + ["--json"] * options.json
    words += ["--plot", options.plot] if options.plot else []
    words += [*options.settings, "--run.folder", recipe.run.folder]
    return launch_local(words, ranks=options.ranks, folder=Path(recipe.run.folder))


def profile(options: argparse.Namespace, recipe: Recipe, plan: Plan | str | None) -> int:
    """Profile as the one rank that this process is."""
    with loading():
        from stepladder import job
        from stepladder.job.opening.open_recipe import user_code
        from stepladder.plan.automatic import automatic_words
        from stepladder.world import Place

    if Place.from_environment().rank == 0:
        announce(user_code(recipe).taken)
    show = partial(show_result, options)
    plan = automatic_words(options.plan) or plan
    job.profile(recipe, plan=plan, steps=options.steps, memory=options.memory, show=show)
    return 0


def show_result(options: argparse.Namespace, result: ProfileResult) -> None:
    from stepladder.cli.results.profile_plots import plot_causes, plot_memory

    memory, moments = result.memory, result.forecast_moments
    if options.plot:
        plot_causes(options.plot, result.profile, result.forecast)
    if memory:
        plot_memory(result.folder / "memory.png", memory, moments)
    if options.json:
        as_json(as_table(result))
        return
    show_time(result.profile, result.forecast)
    if memory:
        show_memory(memory, moments, result.fragmentation)
        print(f"picture: {result.folder / 'memory.png'}")


def as_table(result: ProfileResult) -> dict[str, Any]:
    """All of it, as JSON has it."""
    memory = result.memory
    moments = [{"moment": name, **each.by_owner()} for name, each in result.forecast_moments]
    return {
        **result.profile.to_dict(),
        "forecast": result.forecast and result.forecast.to_dict(),
        "memory": memory and {**asdict(memory), "forecast": moments},
    }


def show_time(found: Profile, said: Forecast | None) -> None:
    forecast = said.time.by_cause() if said and said.time else {}
    rows: list[list[object]] = []
    for cause, spent in found.causes.items():
        rows.append(row(cause.replace("_", " "), spent, found, forecast.get(cause)))
        if cause == "communication":
            rows += [row(f"  {name}", each, found, None) for name, each in exposed(found)]
    rows.append(row("unexplained", found.unexplained_seconds, found, None))
    whole = said.time.step_seconds if said and said.time else None
    rows.append(row("step", found.step_seconds, found, whole))
    table("A step by cause", ["cause", "ms", "share", "forecast ms"], rows)
    print(f"plan {found.plan}, on {found.device}, {len(found.own_seconds)} ranks")
    print(*lines(found), sep="\n")


def exposed(found: Profile) -> list[tuple[str, float]]:
    return [(name, spent) for name, spent in found.collectives.items() if spent]


def row(name: str, spent: float, found: Profile, said: float | None) -> list[object]:
    forecast = "" if said is None else f"{said * 1e3:.3f}"
    return [name, f"{spent * 1e3:.3f}", percent(spent / found.step_seconds), forecast]


def lines(found: Profile) -> list[str]:
    """The figures below the table, the verdict, what was found and where it is kept."""
    flops = rate(found.flops_per_second, found.peak_flops_per_second, 1e12, "TFLOP/s")
    moved = rate(found.bytes_per_second, found.peak_bytes_per_second, 1e9, "GB/s")
    busy = percent(found.busy_share)
    return [
        f"device busy {busy}; {flops}; memory-bound work at {moved}; "
        f"{found.operations:,.0f} operations a step",
        f"the profiler made the step {found.overhead:.2f} × as long "
        f"({found.plain_seconds * 1e3:.2f} ms without it)",
        f"verdict: {found.bound}",
        *(f"  - {finding}" for finding in found.findings),
        *(f"trace: {name}" for name in found.files),
    ]


def rate(value: float | None, peak: float | None, unit: float, name: str) -> str:
    if value is None:
        return f"unknown {name}"
    share = f"{value / peak:.1%} of its peak" if peak else "of an unknown peak"
    return f"{value / unit:,.3g} {name} ({share})"


def show_memory(
    memory: MemoryTimeline, moments: tuple[tuple[str, Memory], ...], fragmentation: str
) -> None:
    said = dict(moments)
    beside = {"backward": "loss", "update": "step"}
    columns = ["owner", *(f"{name} MiB" for name in memory.at)]
    forecast = {name: said[beside[name]] for name in memory.at if beside.get(name) in said}
    if moments:
        forecast["peak"] = max((m for _, m in moments), key=lambda m: m.allocated_bytes)
    columns += [f"forecast {name} MiB" for name in forecast]
    every = [*memory.at.values(), *forecast.values()]
    owners = [o for o in every[0].by_owner() if any(m.by_owner()[o] for m in every)]
    rows: list[list[object]] = [
        [owner, *(f"{each.by_owner()[owner] / MIB:.2f}" for each in every)] for owner in owners
    ]
    rows.append(["all", *(f"{each.peak_bytes / MIB:.2f}" for each in every)])
    table("Memory over a step", columns, rows)
    held = [[h.name, h.owner, f"{h.num_bytes / MIB:.2f}"] for h in memory.holders]
    table("Held at the peak", ["by", "owner", "MiB"], held)
    print(memory.describe_peak())
    if fragmentation:
        print(f"fragmentation: {fragmentation}")
    for name in memory.files:
        print(f"snapshot: {name} (open it at pytorch.org/memory_viz)")
