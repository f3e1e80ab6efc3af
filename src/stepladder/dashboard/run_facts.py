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
        }


def state(index: JournalIndex) -> str:
    """finished, live, silent, or empty if nothing was written."""
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
            "bad_lines": index.lines.bad,
            "starts": len(index.starts),
            "plan": start.get("plan"),
            "because": last_known(index.starts, "because"),
            "environment": last_known(index.starts, "environment"),
            "recipe": text_of(index.folder / "run.toml"),
            "newest": index.newest,
            "memory": index.latest.get("memory"),
            "device": index.latest.get("device"),
            "timeline": index.latest.get("timeline"),
            "profile": index.latest.get("profile"),
            "summary": index.latest.get("summary"),
            "comparison": compare_forecast(index),
            "ranks": rank_rows(index),
            "events": list(index.events),
        }


def last_known(starts: list[dict[str, Any]], name: str) -> Any:
    """The value in the newest start that has it, since a resumed run may not repeat it."""
    return next((start[name] for start in reversed(starts) if start.get(name)), None)


def compare_forecast(index: JournalIndex) -> list[dict[str, Any]]:
    """Forecast beside measured: step, tokens/s, memory by owner, time by cause."""
    forecast, measured = index.latest.get("forecast", {}), index.latest.get("measured", {})
    forecast_time, forecast_memory = as_dict(forecast.get("time")), as_dict(forecast.get("memory"))
    measured_memory = as_dict(measured.get("memory"))
    step_seconds = forecast_time.get("step_seconds")
    tokens = forecast.get("tokens_per_step")
    rate = (
        tokens / step_seconds
        if is_number(tokens) and is_number(step_seconds) and step_seconds
        else None
    )
    rows = [
        comparison_row("step", "s", step_seconds, measured.get("step_seconds")),
        comparison_row("tokens/s", "/s", rate, measured.get("tokens_per_second")),
        comparison_row(
            "peak memory", "B", forecast_memory.get("peak_bytes"), sum_of(measured_memory)
        ),
    ]
    owners = dict.fromkeys([*forecast_memory, *measured_memory])
    for owner in owners:
        if owner != "peak_bytes" and (forecast_memory.get(owner) or measured_memory.get(owner)):
            rows.append(
                comparison_row(owner, "B", forecast_memory.get(owner), measured_memory.get(owner))
            )
    measured_causes = {"data": measured.get("data_seconds"), **profiled_causes(index)}
    for cause, seconds in forecast_time.items():
        if cause != "step_seconds" and (seconds or measured_causes.get(cause)):
            rows.append(comparison_row(f"{cause} time", "s", seconds, measured_causes.get(cause)))
    return [one for one in rows if one["forecast"] is not None or one["measured"] is not None]


def profiled_causes(index: JournalIndex) -> dict[str, Any]:
    """Seconds by cause, if the run was profiled."""
    return as_dict(index.latest.get("profile", {}).get("causes"))


def comparison_row(what: str, unit: str, forecast: Any, measured: Any) -> dict[str, Any]:
    forecast, measured = (value if is_number(value) else None for value in (forecast, measured))
    off = forecast / measured - 1 if forecast is not None and measured else None
    return {"what": what, "unit": unit, "forecast": forecast, "measured": measured, "off": off}


def sum_of(owners: dict[str, Any]) -> float | None:
    return sum(numbers(list(owners.values()))) if owners else None


def is_number(value: Any) -> bool:
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return whole and math.isfinite(value)


def rank_rows(index: JournalIndex) -> list[dict[str, Any]]:
    """Each rank's own time, waiting time and memory over the last reports, and who straggles."""
    if not index.recent_ranks:
        return []
    newest = index.recent_ranks[-1]
    count = len(numbers(newest.get("own_seconds")))
    alike = [e for e in index.recent_ranks if len(numbers(e.get("own_seconds"))) == count]
    own = [mean([numbers(e.get("own_seconds"))[rank] for e in alike]) for rank in range(count)]
    usual = statistics.median(own) if own else 0.0
    wait, memory = numbers(newest.get("wait_seconds")), numbers(newest.get("memory_bytes"))
    return [
        {
            "rank": rank,
            "own_seconds": seconds,
            "wait_seconds": wait[rank] if rank < len(wait) else None,
            "memory_bytes": memory[rank] if rank < len(memory) else None,
            "straggles": count > 1 and seconds > STRAGGLER_FACTOR * usual,
        }
        for rank, seconds in enumerate(own)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
