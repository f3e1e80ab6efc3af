"""The facts of a run besides its curves: state, forecast against measurement, ranks, events."""

from __future__ import annotations

import math
import statistics
import time
import tomllib
from pathlib import Path
from typing import Any

from .journal_index import JournalIndex, as_dict, numbers

STALE_SECONDS = 60  # without a new line, and at least as long as
STALE_STEPS = 20  # steps take: the run is silent
STRAGGLER_FACTOR = 1.1  # times the median own time of all ranks
NEGLIGIBLE = 0.01  # share of the peak, or of the step, below which an error in percent says nothing
MAX_TEXT_BYTES = 2**20  # read of a text file in the run folder


def headline(index: JournalIndex) -> dict[str, Any]:
    """The facts that the list of runs shows."""
    with index.lock:
        newest = index.newest
        return {
            "revision": index.revision,
            "state": state(index),
            "read": round(index.read_share, 4),
            "step": index.steps.last_step,
            "steps": planned_steps(index),
            "loss": newest.get("loss"),
            "tokens_per_second": newest.get("tokens_per_second"),
            "validation": last_validation(index),
            "unit": unit(index),
        }


def state(index: JournalIndex) -> str:
    """finished, failed, live, silent, or empty if nothing was written."""
    if "end" in index.latest:
        return "failed" if index.latest["end"].get("failure") else "finished"
    if "summary" in index.latest:
        return "finished"
    if not index.size:
        return "empty"
    usual = index.newest.get("seconds")
    patience = max(STALE_SECONDS, STALE_STEPS * usual if isinstance(usual, float) else 0)
    try:
        age = time.time() - index.path.stat().st_mtime
    except OSError:  # the folder was deleted; what was read is still shown
        return "silent"
    return "live" if age < patience else "silent"


def silent_seconds(index: JournalIndex) -> float | None:
    """How long a run that is silent has written nothing."""
    try:
        return time.time() - index.path.stat().st_mtime if state(index) == "silent" else None
    except OSError:
        return None


def unit(index: JournalIndex) -> str:
    """What a run's throughput counts: tokens, samples, or targets of another kind."""
    said = index.newest.get("unit")
    return said if isinstance(said, str) and said else "tokens"


def planned_steps(index: JournalIndex) -> int | None:
    steps = as_dict(recipe(index.folder).get("train")).get("steps")
    return steps if isinstance(steps, int) else None


def recipe(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text_of(folder / "run.toml"))
    except ValueError:
        return {}


def text_of(path: Path) -> str:
    """A text file of the run folder; empty if there is none."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return ""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def last_validation(index: JournalIndex) -> float | None:
    loss = index.latest.get("evaluation", {}).get("loss")
    return loss if is_number(loss) else None


def run_facts(index: JournalIndex) -> dict[str, Any]:
    """All facts of a run that are not curves."""
    with index.lock:
        start = index.starts[-1] if index.starts else {}
        return {
            "revision": index.revision,
            "folder": index.folder.name,
            "state": state(index),
            "failure": index.latest.get("end", {}).get("failure"),
            "silent_seconds": silent_seconds(index),
            "unit": unit(index),
            "bad_lines": index.lines.bad,
            "starts": len(index.starts),
            "plan": start.get("plan"),
            "because": last_known(index.starts, "because"),
            "environment": last_known(index.starts, "environment"),
            "recipe": text_of(index.folder / "run.toml"),
            "step": index.steps.last_step,
            "steps": planned_steps(index),
            "validation": last_validation(index),
            "newest": index.newest,
            "memory": index.latest.get("memory"),
            "device": index.latest.get("device"),
            "timeline": index.latest.get("timeline"),
            "profile": index.latest.get("profile"),
            "summary": index.latest.get("summary"),
            "comparison": compare_forecast(index),
            "ranks": (rows := rank_rows(index)),
            "ranks_verdict": rank_verdict(rows),
            "samples": index.samples.listed(),
            "events": list(index.events),
        }


def last_known(starts: list[dict[str, Any]], name: str) -> Any:
    """The value in the newest start that has it, since a resumed run may not repeat it."""
    return next((start[name] for start in reversed(starts) if start.get(name)), None)


def compare_forecast(index: JournalIndex) -> list[dict[str, Any]]:
    """Forecast beside measured: step, rate, memory by owner, time by cause."""
    forecast, measured = index.latest.get("forecast", {}), index.latest.get("measured", {})
    seconds, tokens = as_dict(forecast.get("time")), forecast.get("tokens_per_step")
    step = seconds.get("step_seconds")
    known = is_number(tokens) and is_number(step) and step
    rate = tokens / step if known and tokens is not None else None
    rows = [
        comparison_row("step", "s", step, measured.get("step_seconds")),
        comparison_row(f"{unit(index)}/s", "/s", rate, measured.get("tokens_per_second")),
        *memory_rows(as_dict(forecast.get("memory")), as_dict(measured.get("memory"))),
        *time_rows(seconds, {"data": measured.get("data_seconds"), **profiled_causes(index)}),
    ]
    return [one for one in rows if one["forecast"] is not None or one["measured"] is not None]


def memory_rows(forecast: dict[str, Any], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """The peak and each owner of it."""
    peak = comparison_row("peak memory", "B", forecast.get("peak_bytes"), sum_of(measured))
    least = NEGLIGIBLE * max(numbers([peak["forecast"], peak["measured"]]), default=0.0)
    return [peak] + [
        comparison_row(owner, "B", forecast.get(owner), measured.get(owner), least)
        for owner in dict.fromkeys([*forecast, *measured])
        if owner != "peak_bytes" and (forecast.get(owner) or measured.get(owner))
    ]


def time_rows(forecast: dict[str, Any], measured: dict[str, Any]) -> list[dict[str, Any]]:
    """Each cause of a step's time."""
    least = NEGLIGIBLE * max(numbers([forecast.get("step_seconds")]), default=0.0)
    return [
        comparison_row(f"{cause} time", "s", seconds, measured.get(cause), least)
        for cause, seconds in forecast.items()
        if cause != "step_seconds" and (seconds or measured.get(cause))
    ]


def profiled_causes(index: JournalIndex) -> dict[str, Any]:
    """Seconds by cause, if the run was profiled."""
    return as_dict(index.latest.get("profile", {}).get("causes"))


def comparison_row(
    what: str, unit: str, forecast: Any, measured: Any, least: float = 0.0
) -> dict[str, Any]:
    """One quantity twice, and by what share the forecast is off; None where one is about nothing.

    Args:
        least: of a quantity that counts.
    """
    forecast, measured = (value if is_number(value) else None for value in (forecast, measured))
    counts = forecast is not None and measured and min(forecast, measured) >= least
    off = forecast / measured - 1 if counts else None
    return {"what": what, "unit": unit, "forecast": forecast, "measured": measured, "off": off}


def sum_of(owners: dict[str, Any]) -> float | None:
    return sum(numbers(list(owners.values()))) if owners else None


def is_number(value: Any) -> bool:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return whole and math.isfinite(value)


def rank_rows(index: JournalIndex) -> list[dict[str, Any]]:
    """Each rank's usual own time, waiting time and memory of late, and who straggles."""
    reports = usual_reports(list(index.recent_ranks))
    if not reports:
        return []
    own, wait = (median_by_rank(reports, name) for name in ("own_seconds", "wait_seconds"))
    memory = numbers(reports[-1].get("memory_bytes"))
    usual = statistics.median(own) if own else 0.0
    return [
        {
            "rank": rank,
            "own_seconds": seconds,
            "wait_seconds": wait[rank] if rank < len(wait) else None,
            "memory_bytes": memory[rank] if rank < len(memory) else None,
            "straggles": len(own) > 1 and seconds > STRAGGLER_FACTOR * usual,
        }
        for rank, seconds in enumerate(own)
    ]


def usual_reports(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of as many ranks as the newest, in which every rank worked.

    The first step of a run, which builds and compiles, is none of them once there is another.
    """
    ranks = len(numbers(reports[-1].get("own_seconds"))) if reports else 0
    alike = [one for one in reports if len(numbers(one.get("own_seconds"))) == ranks]
    worked = [one for one in alike if min(numbers(one.get("own_seconds")), default=0.0) > 0]
    return [one for one in worked if one.get("step") != 0] or worked


def median_by_rank(reports: list[dict[str, Any]], name: str) -> list[float]:
    """The median over the reports, of each rank."""
    return [statistics.median(each) for each in zip(*(numbers(one.get(name)) for one in reports))]


def rank_verdict(rows: list[dict[str, Any]]) -> str:
    """Who holds the others up, and by how much, in a sentence; empty for one rank."""
    if len(rows) < 2:
        return ""
    slow = [row for row in rows if row["straggles"]]
    if not slow:
        return "no rank holds the others up"
    usual = statistics.median(row["own_seconds"] for row in rows)
    names = " and ".join(f"rank {row['rank']}" for row in slow[:3])
    more = f" and {len(slow) - 3} more" if len(slow) > 3 else ""
    worst = max(row["own_seconds"] for row in slow) / usual - 1 if usual else 0.0
    most = "up to " if len(slow) > 1 else ""
    share = f": {most}{worst:.0%} more work than the median" if usual else ""
    return f"{names}{more} {'hold' if len(slow) > 1 else 'holds'} the others up{share}"
