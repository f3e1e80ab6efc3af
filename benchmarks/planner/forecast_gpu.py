"""The planner held against one GPU: calibrate, measure cases, sweep plans, compare.

    PYTHONPATH=src python3 benchmarks/planner/forecast_gpu.py --out DIR --budget 420
    PYTHONPATH=src python3 benchmarks/planner/forecast_gpu.py --report DIR/planner_gpu.json

The first needs the GPU and writes after every measurement, so that nothing is lost when time runs
out; a case that fails leaves its error. The second needs none: it makes every forecast anew from
what was measured, so that formulas can be improved long after the machine is gone.

Order: calibration, eager cases, the two sweeps, compiled cases; each has its share of the budget.
`--cases-alone` leaves out the sweeps, and `--first` puts the cases whose plan has one of its words
in front. Eager cases stand side by side in groups and are timed in turns, a few steps at a time,
because a host is not equally fast at all times; what is shown is the median of all their steps and,
as spread, how far apart the medians of the turns are. Other tenants of a machine only slow it down,
and do so for seconds, by up to 1.9 times: `quiet` holds a forecast against the quieter half of the
turns. Nothing tells Python's garbage collector when
to work. Peaks are the allocator's over the first turn. `--device cpu` tries the script on small
things.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.calibrate import calibrate
from stepladder.calibrate.calibrate import device_name
from stepladder.calibrate.fit_rates import fit
from stepladder.data import Batch
from stepladder.hardware import Cluster
from stepladder.measure import measure_memory
from stepladder.model import build
from stepladder.model.builtin.initialise import reset_buffers, retie
from stepladder.plan import BatchSplit, Plan
from stepladder.planner import forecast, search
from stepladder.record import Calibration, Forecast, correction_key
from stepladder.train import climb
from stepladder.workload import find_facts
from stepladder.world import synchronize

NAME = "planner_gpu.json"
SHARES = {"calibrate": 0.15, "eager": 0.27, "sweep": 0.42}  # of the budget; compiled: the rest
ROUNDS = 4  # of timed steps, in turns with the others of a group
GROUP = 6  # eager cases that stand side by side
LONG = 0.4  # seconds of a step after which two are timed instead of five
WHOLE, WHOLE_SECONDS = ("resnet", "odd"), 60.0  # compiled in one piece, which takes a while
LEAST_CALIBRATION = 75.0  # seconds: what it misses, every forecast misses
HOST = ("launch", "launch llama", "ask for an update")  # what the host, and not the device, takes
GIB = 2**30


@dataclass(frozen=True)
class Sweep:
    """One model and batch under many plans."""

    model: str
    sequence: int
    batch: int
    plans: tuple[str, ...]  # the most telling first


def words(precision: str, micro: int, depth: str, *, compiled: bool = False) -> str:
    tail = " compile=on" if compiled else ""
    depth = "" if depth == "none" else f" recompute={depth}"
    return f"{precision}{depth}{tail} micro={micro}"


def plans(micros: tuple[int, ...], wide: tuple[int, ...], *, compiled: bool) -> tuple[str, ...]:
    """Compiled bf16 first: that is where the best are, and what a search picks among."""
    descending, depths = tuple(reversed(micros)), ("none", "selective", "blocks")
    best = words("bf16", micros[-1], "none", compiled=True)
    fused = [f"{words('bf16', m, 'none', compiled=True)} kernels=on" for m in descending[:2]]
    eager = [words("bf16", m, depth) for m, depth in product(descending, depths)]
    eager += [f"{words('bf16', m, 'none')} kernels=on" for m in descending[:2]]
    eager += [words("bf16", m, "every:2") for m in descending[:2]]
    wider = [words("tf32", m, depth) for m, depth in product(wide, ("none", "blocks"))]
    return (*fused[:1], best, *eager, *wider, *fused[1:]) if compiled else (*eager, *wider)


SWEEPS = {
    "cuda": (
        Sweep("gpt2", 1024, 32, plans((4, 8, 16, 32), (16, 32), compiled=True)),
        Sweep("llama3.2-1b", 2048, 8, plans((1, 2, 4, 8), (4, 8), compiled=True)),
    ),
    "cpu": (Sweep("gpt-tiny", 64, 4, plans((2, 4), (4,), compiled=False)),),
}


class Results:
    """What was measured so far, on disk after every addition."""

    def __init__(self, folder: Path, head: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.table: dict[str, Any] = {**head, "calibration": None, "cases": [], "sweeps": []}
        self.write()

    def write(self) -> None:
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.table, indent=1) + "\n")
        partial.replace(self.path)


# Measuring.


class Trial:
    """One plan that trains: its peaks in the first round of steps, its seconds in all."""

    def __init__(
        self, make: Callable[[], nn.Module], batch: Batch, plan: Plan, device: str, *, warmup: int
    ) -> None:
        clear(device)
        self.device, self.plan, self.rounds = device, plan, list[list[float]]()
        held, reserved = held_bytes(device)
        began = time.perf_counter()
        self.run = climb(make(), loss="cross_entropy", plan=plan, device=device)
        self.batch = batch.to(self.run.world.device)
        built = time.perf_counter() - began
        first = [one_step(self.run, self.batch) for _ in range(2)]
        self.long = first[-1] > LONG  # long steps are steady ones, and dear
        first += [one_step(self.run, self.batch) for _ in range(0 if self.long else warmup - 2)]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.time(5)
        self.found: dict[str, Any] = {
            "warmup_seconds": first,
            "build_seconds": built,
            **peaks(device, held, reserved),
        }

    def time(self, steps: int) -> None:
        count = 2 if self.long else steps
        self.rounds.append([one_step(self.run, self.batch) for _ in range(count)])

    def results(self) -> dict[str, Any]:
        return {
            "step_seconds": statistics.median(s for each in self.rounds for s in each),
            "all_seconds": self.rounds,
            **self.found,
            "events": list(self.run.events),
        }

    def owners(self, vocab: int) -> dict[str, Any]:
        """What a step's memory is held for, where no allocator counts it."""
        run, batch = self.run, self.batch
        return asdict(
            measure_memory(
                lambda: run.step(batch), run.module, run.optimizer, run.world.device, vocab=vocab
            )
        )


def one_step(run: Any, batch: Batch) -> float:
    synchronize(run.world.device)
    began = time.perf_counter()
    run.step(batch)
    synchronize(run.world.device)
    return time.perf_counter() - began


def held_bytes(device: str) -> tuple[int, int]:
    """What others hold already, allocated and reserved."""
    if device != "cuda":
        return 0, 0
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def peaks(device: str, held: int, reserved: int) -> dict[str, int | None]:
    if device != "cuda":
        return {"allocated_bytes": None, "reserved_bytes": None}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated() - held,
        "reserved_bytes": torch.cuda.max_memory_reserved() - reserved,
    }


def clear(device: str) -> None:
    gc.collect()
    torch._dynamo.reset()  # else a second shape is compiled for all shapes, and slower
    if device == "cuda":
        forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if forget:  # what the case before asked for
            forget()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def failure(error: Exception) -> dict[str, Any]:
    frames = traceback.format_exc().splitlines()[-6:]
    return {"error": f"{type(error).__name__}: {error}"[:400], "traceback": frames}


def show(label: str, found: dict[str, Any]) -> None:
    shown = found.get("error") or (
        f"{found['step_seconds'] * 1e3:9.2f} ms  {(found['allocated_bytes'] or 0) / GIB:7.2f} GiB"
        f"  spread {spread(found) or 0.0:.0%}"
    )
    print(f"{label:62} {shown}", flush=True)


def spread(found: dict[str, Any]) -> float | None:
    """How far apart the rounds' medians are, as a share of the median of all steps."""
    rounds = found["all_seconds"]
    if not isinstance(rounds[0], list):  # of an older file: one round
        return None
    medians = [statistics.median(each) for each in rounds]
    return (max(medians) - min(medians)) / found["step_seconds"]


def quiet_seconds(found: dict[str, Any]) -> float:
    """The median step of the quieter half of the rounds; of one round, of all its steps."""
    rounds = found["all_seconds"]
    if not isinstance(rounds[0], list):
        return found["step_seconds"]
    quieter = sorted(rounds, key=statistics.median)[: (len(rounds) + 1) // 2]
    return statistics.median(seconds for each in quieter for seconds in each)


def measure_cases(
    results: Results, device: str, deadline: float, *, compiled: bool, most: int,
    first: list[str],
) -> None:  # fmt: skip
    try:
        import forecast_cases
    except Exception as error:
        results.table["cases_error"] = f"{type(error).__name__}: {error}"
        print("cases left out:", results.table["cases_error"], flush=True)
        return
    originals: dict[str, nn.Module] = {}
    chosen = list(ordered(forecast_cases.cases(device), compiled, first))[:most]
    size = 1 if compiled else GROUP  # what is compiled is forgotten before the next
    for index in range(0, len(chosen), size):
        group = chosen[index : index + size]
        needed = WHOLE_SECONDS if compiled and group[0].model in WHOLE else 0.0
        if time.monotonic() + needed > deadline:
            print(f"{len(chosen) - index} cases left out: their time is spent", flush=True)
            return
        measure_group(results, group, originals, device)


def measure_group(
    results: Results, group: list[Any], originals: dict[str, nn.Module], device: str
) -> None:
    """Start these cases one after another, then time them in turns."""
    trials: dict[Any, Trial] = {}
    failed: dict[Any, dict[str, Any]] = {}
    for case in group:
        try:
            trials[case] = case_trial(case, originals, device)
        except Exception as error:
            failed[case] = failure(error)
    for _ in range(ROUNDS - 1):
        for trial in trials.values():
            trial.time(4)
    for case in group:
        found = failed.get(case) or trials[case].results()
        if case in trials and device == "cpu":
            found["owners"] = trials[case].owners(case.on(device).vocab)
        show(str(case), found)
        entry = {"case": str(case), "plan": str(case.plan(device))}
        results.table["cases"].append({**entry, **found})
    results.write()


def case_trial(case: Any, originals: dict[str, nn.Module], device: str) -> Trial:
    model, plan = case.on(device), case.plan(device)
    if case.model not in originals:
        originals[case.model] = model.make_on("cpu")
    batch = model.batch(plan.batch.sequences or 1)
    return Trial(partial(copy.deepcopy, originals[case.model]), batch, plan, device, warmup=3)


def ordered(cases: list[Any], compiled: bool, first: list[str]) -> Iterator[Any]:
    """Those asked for first, then plan by plan over all models; what is slow, in fp32 or to
    compile whole, last."""
    mine = [case for case in cases if case.plan("cuda").compile == compiled]
    turns = list(dict.fromkeys((case.words, case.rows, case.passes) for case in mine))

    def turn(case: Any) -> tuple[bool, bool, int]:
        slow = case.model in WHOLE if compiled else case.words.startswith("fp32")
        place = turns.index((case.words, case.rows, case.passes))
        return slow, not any(word in case.words for word in first), place

    yield from sorted(mine, key=turn)


def measure_sweeps(
    results: Results, device: str, seconds: float, calibration: Calibration, only: str | None = None
) -> None:
    began = time.monotonic()
    sweeps = [sweep for sweep in SWEEPS[device] if only in (None, sweep.model)]
    for index, sweep in enumerate(sweeps):
        deadline = began + seconds * (index + 1) / len(sweeps)
        table: dict[str, Any] = {**asdict(sweep), "rows": []}
        results.table["sweeps"].append(table)
        for text in [*picked(sweep, results.table["device"], calibration), *sweep.plans]:
            if time.monotonic() > deadline:
                print(f"{sweep.model}: plans from '{text}' on left out: their time is spent")
                break
            try:
                found = measure_plan(sweep, text, device)
            except Exception as error:
                found = failure(error)
            show(f"{sweep.model}: {text}", found)
            table["rows"].append({"plan": text, **found})
            results.write()


def measure_plan(sweep: Sweep, text: str, device: str) -> dict[str, Any]:
    vocab = find_facts(sweep.model, sweep.sequence).vocab
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab, (sweep.batch, sweep.sequence), generator=draw)
    batch = Batch.of((tokens, tokens.roll(-1, 1)), position=0, size=sweep.batch)
    plan = settled(text, sweep.batch)
    make = partial(quickly_built, sweep.model, sweep.sequence, device)
    trial = Trial(make, batch, plan, device, warmup=2)
    trial.time(3)
    return trial.results()


def picked(sweep: Sweep, device: str, calibration: Calibration) -> list[str]:
    """What a search picks today, where the sweep would not come across it."""
    try:
        facts = find_facts(sweep.model, sweep.sequence)
        found = search(facts, cluster_of(device), batch=sweep.batch, calibration=calibration)
        pick = found.best.plan
    except Exception:
        traceback.print_exc()
        return []
    known = {settled(text, sweep.batch) for text in sweep.plans}
    return [] if pick.settle(1) in known else [str(pick)]


def settled(text: str, batch: int) -> Plan:
    return replace(Plan.parse(text), batch=BatchSplit(batch, Plan.parse(text).batch.micro)).settle(
        1
    )


def quickly_built(name: str, sequence: int, device: str) -> nn.Module:
    """The model with first values drawn on the device: a billion on the host takes a while."""
    module = build(name, device="meta", sequence=sequence).to_empty(device=device)
    retie(module)
    with torch.no_grad():
        for parameter_name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
            else:
                parameter.fill_(0.0 if parameter_name.endswith("bias") else 1.0)
    for part_name, part in module.named_modules():
        reset_buffers(part_name, part)
    return module


def run(options: argparse.Namespace) -> Path:
    device = options.device
    here = torch.device(device, 0) if device == "cuda" else torch.device("cpu")
    shown = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    head = {"machine": shown, "device": device_name(here), "torch": torch.__version__}
    results = Results(Path(options.out), {**head, "date": time.strftime("%Y-%m-%d")})
    began, budget = time.monotonic(), options.budget
    started = time.monotonic()
    found = calibrate(here, min(90.0, max(LEAST_CALIBRATION, budget * SHARES["calibrate"])))
    results.table["calibration_seconds"] = time.monotonic() - started
    results.table["calibration"] = asdict(found)
    results.write()
    note(began, f"calibrated: {summary(found)}")
    if options.sweep:
        left = began + budget - time.monotonic()
        measure_sweeps(results, device, left, found, options.sweep)
        return results.path
    shares = {**SHARES, "sweep": 0.0, "eager": 0.6} if options.cases_alone else SHARES
    case_options = {"most": options.cases, "first": options.first}
    eager = time.monotonic() + budget * shares["eager"]
    measure_cases(results, device, eager, compiled=False, **case_options)
    note(began, "eager cases done")
    if not options.cases_alone:
        measure_sweeps(results, device, budget * shares["sweep"], found)
        note(began, "sweeps done")
    measure_cases(results, device, began + budget, compiled=True, **case_options)
    note(began, "compiled cases done")
    return results.path


def note(began: float, text: str) -> None:
    print(f"--- {time.monotonic() - began:6.1f} s  {text}", flush=True)


def summary(found: Calibration) -> str:
    rates = ", ".join(
        f"{c} {r / 1e12:.4g} (edges {found.matrix_edges[c]:.2f})"
        for c, r in found.matrix_flops_per_second.items()
    )
    attend = ", ".join(f"{c} {r / 1e12:.4g}" for c, r in found.attention_flops_per_second.items())
    bandwidth, update = found.bandwidth_bytes_per_second, found.optimizer_bytes_per_second
    return (
        f"TFLOP/s {rates}; attention {attend}; GB/s {(bandwidth or 0) / 1e9:.4g}, "
        f"update {(update or 0) / 1e9:.4g}; launch {(found.launch_seconds or 0) * 1e6:.3g} µs; "
        f"context {(found.context_bytes or 0) / 2**20:.0f} MiB"
    )


# Comparing.


@dataclass(frozen=True)
class Line:
    """One case: forecast over measured, less one."""

    name: str
    allocated: float | None = None
    reserved: float | None = None
    seconds: float | None = None
    quiet: float | None = None  # the same against the quieter half of its rounds
    uncalibrated: float | None = None
    refined: float | None = None  # seconds, as the lease's cases before this one refined them
    spread: float | None = None  # of the rounds it was timed in
    lease: int = 0  # 0: the newest
    problem: str = ""


@dataclass(frozen=True)
class Session:
    """One lease of the machine: its measurements, and the calibration of that very hour."""

    table: dict[str, Any]
    cluster: Cluster
    calibration: Calibration | None


def sessions_of(paths: list[Path]) -> list[Session]:
    """Newest first. A host is not equally fast in every lease, so each is held against its own
    launches; what an older calibration did not time of the device it takes from the newest. What it
    did not time of the host stays unknown: seconds of two hosts do not add up."""
    tables = [json.loads(path.read_text()) for path in paths]
    newest = tables[0]["calibration"]
    found = []
    for table in tables:
        own = table["calibration"]
        if own and own is not newest:
            kinds = {(t["kind"], t["compute"]) for t in own["timings"]}
            own["timings"] += [
                t
                for t in newest["timings"]
                if (t["kind"], t["compute"]) not in kinds and t["kind"] not in HOST
            ]
        found.append(Session(table, cluster_of(table["device"]), refitted(own)))
    return found


def report(paths: list[Path], *, cases: bool = True) -> int:
    """Forecast everything anew and print how far each forecast is off; a case's newest counts."""
    lines: dict[str, Line] = {}
    measured: dict[str, list[tuple[Session, dict[str, Any]]]] = {}
    for lease, session in enumerate(sessions_of(paths)):
        table = session.table
        if session.calibration:
            print(f"{table['machine']}, torch {table['torch']}: {summary(session.calibration)}")
        learned = session.calibration
        for entry in case_entries(table) if cases else ():
            line, after = refine(entry, session, learned)
            lines.setdefault(line.name, replace(line, lease=lease))
            learned = after
        for sweep in table["sweeps"]:
            measured.setdefault(sweep["model"], []).append((session, sweep))
    show_cases(list(lines.values()))
    picks = [sweep_report(each) for each in measured.values()]
    every = list(lines.values())
    found = {"cases": [asdict(line) for line in every], "sweeps": picks, **verdict(every)}
    paths[0].with_name("planner_gpu_report.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0


def cluster_of(device: str) -> Cluster:
    cluster = Cluster.parse(f"1 x {device}")
    return replace(cluster, devices_per_node=1)


def refitted(table: Any) -> Calibration | None:
    """The timings fitted anew, by the formulas of today."""
    if table is None:
        return None
    kept = Calibration.from_table(table)
    return fit(kept.device, kept.timings, kept.context_bytes)


def case_entries(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    if not table["cases"]:
        return
    import forecast_cases

    device = "cpu" if table["device"] == "CPU" else "cuda"
    known = {str(case): case for case in forecast_cases.cases(device)}
    for entry in table["cases"]:
        yield entry, known.get(entry["case"])


FACTS: dict[str, Any] = {}  # a model is traced once


def forecast_entry(case: Any, cluster: Cluster, calibration: Calibration | None) -> Forecast:
    import forecast_cases

    device = "cpu" if cluster.device.is_cpu else "cuda"
    if case.model not in FACTS:
        FACTS[case.model] = forecast_cases.facts_case(case, device)
    return forecast(FACTS[case.model], case.plan(device), cluster, calibration)


def refine(
    pair: tuple[dict[str, Any], Any], session: Session, learned: Calibration | None
) -> tuple[Line, Calibration | None]:
    """A case's line, and what its run makes of the calibration: the same as every run does."""
    entry, case = pair
    line = case_line(pair, session.cluster, session.calibration)
    if learned is None or line.seconds is None:
        return line, learned
    said = forecast_entry(case, session.cluster, learned).time
    assert said is not None
    pace = correction_key(said, case.plan("cuda").precision.compute)
    was = entry["step_seconds"]
    refined = off(said.step_seconds, was)
    return replace(line, refined=refined), learned.refined(pace, was / said.step_seconds)


def case_line(
    pair: tuple[dict[str, Any], Any], cluster: Cluster, calibration: Calibration | None
) -> Line:
    entry, case = pair
    if "error" in entry or case is None:
        return Line(entry["case"], problem=entry.get("error", "no longer a case"))
    try:
        found = forecast_entry(case, cluster, calibration)
        plain = forecast_entry(case, cluster, None)
    except Exception as error:
        return Line(entry["case"], problem=f"{type(error).__name__}: {error}"[:160])
    memory, owners = found.memory, entry.get("owners")
    allocated = entry["allocated_bytes"] or (sum(owners.values()) if owners else None)
    return Line(
        entry["case"],
        off(memory.allocated_bytes, allocated),
        off(memory.allocated_bytes + memory.reserved, entry["reserved_bytes"]),
        off(found.time and found.time.step_seconds, entry["step_seconds"]),
        off(found.time and found.time.step_seconds, quiet_seconds(entry)),
        off(plain.time and plain.time.step_seconds, entry["step_seconds"]),
        spread=spread(entry),
    )


def off(said: float | None, was: float | None) -> float | None:
    return said / was - 1 if said is not None and was else None


def show_cases(lines: list[Line]) -> None:
    words = ("alloc", "reserv", "time", "quiet", "uncal", "refined", "spread")
    head = "".join(f" {word:>7}" for word in words)
    print(f"\n{'case':62}{head} lease")
    for line in lines:
        cells = (line.allocated, line.reserved, line.seconds, line.quiet, line.uncalibrated)
        shown = " ".join(map(cell, (*cells, line.refined, line.spread)))
        print(f"{line.name:62} {shown} {line.lease + 1:5} {line.problem}")
    print()
    for name, numbers in verdict(lines).items():
        shown = [f"{key} {value:+.1%}" for key, value in numbers.items() if key != "cases"]
        print(f"{name:14} {numbers['cases']:3} cases  {'  '.join(shown)}")


def cell(share: float | None) -> str:
    return f"{'-':>7}" if share is None else f"{share:+7.1%}"


def verdict(lines: list[Line]) -> dict[str, dict[str, float]]:
    """Median and worst size of the errors, and the lowest forecast."""
    summed = {}
    for name in ("allocated", "reserved", "seconds", "quiet", "uncalibrated", "refined"):
        errors = [e for line in lines if (e := getattr(line, name)) is not None]
        if errors:
            sizes = [abs(e) for e in errors]
            summed[name] = {
                "cases": len(errors), "median": statistics.median(sizes), "worst": max(sizes),
                "lowest": min(errors), "bias": statistics.median(errors),
            }  # fmt: skip
    return summed


def sweep_report(sweeps: list[tuple[Session, dict[str, Any]]]) -> dict[str, Any]:
    """Every plan's forecast beside its measurement, and the search's pick against the best."""
    session, sweep = sweeps[0]
    cluster, calibration = session.cluster, session.calibration
    facts = find_facts(sweep["model"], sweep["sequence"])
    measured: dict[str, dict[str, Any]] = {}
    hour: dict[str, Calibration | None] = {}
    for then, table in sweeps:
        for row in table["rows"]:
            if "error" not in row and row["plan"] not in measured:
                measured[row["plan"]], hour[row["plan"]] = row, then.calibration
    print(
        f"\n{sweep['model']}, batch {sweep['batch']} x {sweep['sequence']}: {len(measured)} plans"
    )
    for text, row in sorted(measured.items(), key=lambda item: item[1]["step_seconds"]):
        said = forecast(facts, settled(text, sweep["batch"]), cluster, hour[text])
        seconds = said.time.step_seconds if said.time else None
        slow = cell(off(seconds, row["step_seconds"]))
        full = cell(off(said.memory.allocated_bytes, row["allocated_bytes"]))
        shown = f"{row['step_seconds'] * 1e3:9.2f} ms"
        print(f"  {text:44} {shown}  forecast off: time {slow}, memory {full}")
    for row in sweep["rows"]:
        if "error" in row:
            print(f"  {row['plan']:44} {row['error'][:100]}")
    return judge(sweep, facts, cluster, calibration, measured)


def judge(
    sweep: dict[str, Any], facts: Any, cluster: Cluster, calibration: Calibration | None,
    measured: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    choices = search(facts, cluster, batch=sweep["batch"], calibration=calibration)
    pick = choices.best.plan
    known = {settled(text, sweep["batch"]): text for text in measured}
    text = known.get(pick.settle(1))
    best = min(measured, key=lambda t: measured[t]["step_seconds"], default=None)
    ratio = None
    if text and best:
        ratio = measured[text]["step_seconds"] / measured[best]["step_seconds"]
    print(f"  search picks '{pick}'; best measured '{best}'; ratio {ratio and round(ratio, 4)}")
    return {"model": sweep["model"], "pick": str(pick), "best": best, "ratio": ratio}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--budget", type=float, default=420.0, help="seconds for everything")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--cases", type=int, default=1000, help="at most so many of each kind")
    parser.add_argument("--cases-alone", action="store_true", help="no sweeps")
    parser.add_argument(
        "--first", nargs="*", default=[], metavar="WORD", help="cases with these words first"
    )
    parser.add_argument("--sweep", metavar="MODEL", help="after calibration, its sweep alone")
    parser.add_argument(
        "--report",
        metavar="FILE",
        nargs="+",
        help="no measuring: forecast these anew, newest first",
    )
    options = parser.parse_args()
    if options.report:
        return report([Path(each) for each in options.report])
    path = run(options)
    try:  # tracing the cases' models needs no GPU, and its time is dear
        return report([path], cases=options.device == "cpu")
    except Exception:  # measured is measured: the report can be made later
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
