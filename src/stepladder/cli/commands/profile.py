"""Where a step's time and memory go, with a verdict: what bounds the run, what would help.

Takes a few real steps of a recipe under torch's profiler. Without a recipe: the small GPT that
`stepladder train` trains. The trace, for Perfetto or Chrome, and on a GPU the allocator's snapshot
are kept in the run folder under profile/.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stepladder.cli.import_torch import loading
from stepladder.cli.results.tables import as_json, percent, table

if TYPE_CHECKING:
    from pathlib import Path

    from stepladder.job import TrainingJob
    from stepladder.measure import MemoryTimeline
    from stepladder.plan import Plan, Recipe
    from stepladder.record import Forecast, Memory, Profile

MIB = 2**20
CONCLUDING_SECONDS = 600  # for rank 0 to draw and print


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RUN.toml", help="what to train, and how")
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
    from stepladder.plan import Plan, read_recipe

    with loading():
        from stepladder.world import Place

    recipe = read_recipe(options.recipe, options.settings)
    plan = Plan.parse(options.plan) if options.plan else recipe.plan_choice()
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

    with loading():
        from stepladder.job.opening.plan_for_ranks import check_for_ranks, spread
        from stepladder.launch import launch_local

    chosen = spread(plan or Plan(), options.ranks)
    check_for_ranks(chosen, recipe, options.ranks, uneven=False)
    words = ["-m", "stepladder.cli.rank", "profile", *([options.recipe] if options.recipe else [])]
    words += ["--plan", str(chosen), "--steps", str(options.steps)]
    words += ["--memory"] * options.memory + ["--json"] * options.json
    words += ["--plot", options.plot] if options.plot else []
    words += [*options.settings, "--run.folder", recipe.run.folder]
    return launch_local(words, ranks=options.ranks, folder=Path(recipe.run.folder))


def profile(options: argparse.Namespace, recipe: Recipe, plan: Plan | None) -> int:
    """Profile as the one rank that this process is."""
    with loading():
        from stepladder.job import TrainingJob

    with ExitStack() as stack:
        job = TrainingJob.open(recipe, plan, stack)
        kept = job.folder / "profile"
        with job.run.world.explaining(), job.batches() as feed:
            found = job.run.profile(feed, steps=options.steps, folder=kept)
            memory = watch_memory(job, next(iter(feed)), kept) if options.memory else None
        if job.first:
            write(job, found)
            conclude(options, job, found, memory, kept)
        leave_together(job)
    return 0


def write(job: TrainingJob, found: Profile) -> None:
    """Keep a profile in the journal, and what the page draws of it in the words it reads."""
    from stepladder.train.profile_steps import Glance

    step = job.run.index
    job.journal.write("profile", **{**found.to_dict(), "lanes": None})
    for kind, entry in Glance(dict(found.collectives), found.lanes).entries(step).items():
        job.journal.write(kind, **entry)


def leave_together(job: TrainingJob) -> None:
    """A rank that leaves while another still draws would be taken for lost."""
    board = job.run.world.board
    if job.first:
        board.post("profiled", "yes")
    board.read("profiled", CONCLUDING_SECONDS)
    job.run.world.close()


def watch_memory(job: TrainingJob, batch: Any, kept: Path) -> MemoryTimeline:
    from stepladder.measure import record_timeline

    taken = job.run
    return record_timeline(
        lambda: taken.step(batch),
        taken.module,
        taken.optimizer,
        taken.world.device,
        vocab=job.comparison.vocab,
        snapshot=kept / f"memory-rank{taken.world.place.rank}.pickle",
    )


def conclude(
    options: argparse.Namespace,
    job: TrainingJob,
    found: Profile,
    memory: MemoryTimeline | None,
    kept: Path,
) -> None:
    from stepladder.cli.results.profile_plots import plot_causes, plot_memory

    said = job.comparison.forecast
    moments = said_moments(job) if memory else ()
    if options.plot:
        plot_causes(options.plot, found, said)
    if memory:
        plot_memory(kept / "memory.png", memory, moments)
    if options.json:
        as_json(
            {
                **found.to_dict(),
                "forecast": said and said.to_dict(),
                "memory": memory and {**asdict(memory), "forecast": [
                    {"moment": name, **each.by_owner()} for name, each in moments]},
            }
        )  # fmt: skip
        return
    show_time(found, said)
    if memory:
        show_memory(memory, moments, job)
        print(f"picture: {kept / 'memory.png'}")


def said_moments(job: TrainingJob) -> tuple[tuple[str, Memory], ...]:
    """The planner's picture of the same step; empty where it has none."""
    from stepladder.planner import forecast_moments
    from stepladder.train.profile_steps import outlook_of

    taken = job.run
    outlook = outlook_of(taken)
    if outlook.facts is None or outlook.cluster is None:
        return ()
    settled = taken.plan.settle(outlook.cluster.num_devices)
    return forecast_moments(outlook.facts, settled, outlook.cluster, outlook.calibration)


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
    memory: MemoryTimeline, moments: tuple[tuple[str, Memory], ...], job: TrainingJob
) -> None:
    from stepladder.measure import measure_fragmentation

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
    if fragments := measure_fragmentation(job.run.world.device):
        print(f"fragmentation: {fragments}")
    for name in memory.files:
        print(f"snapshot: {name} (open it at pytorch.org/memory_viz)")
