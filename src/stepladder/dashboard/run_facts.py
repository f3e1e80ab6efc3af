"""What a page says of a run beside its curves: state, forecast and measurement, ranks, events."""

from __future__ import annotations

import statistics
import time
import tomllib
from pathlib import Path
from typing import Any

from .journal_index import JournalIndex, as_dict, numbers

SILENT_SECONDS = 60  # without a line, and many times what its steps take: a run that says nothing
SILENT_STEPS = 20
SLOW = 1.1  # times the median of all ranks' own time
LARGEST = 2**20  # bytes of a text kept beside the journal


def headline(index: JournalIndex) -> dict[str, Any]:
    """One line of the list of runs."""
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
    """finished, live or silent; empty where nothing was ever written."""
    if "summary" in index.latest:
        return "finished"
    if not index.size:
        return "empty"
    usual = index.newest.get("seconds")
    patience = max(SILENT_SECONDS, SILENT_STEPS * usual if isinstance(usual, float) else 0)
    try:
        age = time.time() - index.path.stat().st_mtime
    except OSError:  # the folder went away: what was read of it is still shown
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
    """A text beside the journal, or nothing."""
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode(errors="replace")
    except OSError:
        return ""


def last_validation(index: JournalIndex) -> float | None:
    loss = index.latest.get("evaluation", {}).get("loss")
    return loss if number(loss) else None


def facts(index: JournalIndex) -> dict[str, Any]:
    """All that is not a curve."""
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
            "comparison": compare(index),
            "ranks": ranks(index),
            "events": list(index.events),
        }


def last_known(starts: list[dict[str, Any]], name: str) -> Any:
    """What the newest start that says it says; a run that went on may leave it out."""
    return next((start[name] for start in reversed(starts) if start.get(name)), None)


def compare(index: JournalIndex) -> list[dict[str, Any]]:
    """Forecast beside measured: step, tokens/s, memory by owner, time by cause."""
    said, was = index.latest.get("forecast", {}), index.latest.get("measured", {})
    said_time, said_memory = as_dict(said.get("time")), as_dict(said.get("memory"))
    was_memory = as_dict(was.get("memory"))
    whole = said_time.get("step_seconds")
    tokens = said.get("tokens_per_step")
    rate = tokens / whole if number(tokens) and number(whole) and whole else None
    rows = [
        row("step", "s", whole, was.get("step_seconds")),
        row("tokens/s", "/s", rate, was.get("tokens_per_second")),
        row("peak memory", "B", said_memory.get("peak_bytes"), sum_of(was_memory)),
    ]
    owners = dict.fromkeys([*said_memory, *was_memory])
    for owner in owners:
        if owner != "peak_bytes" and (said_memory.get(owner) or was_memory.get(owner)):
            rows.append(row(owner, "B", said_memory.get(owner), was_memory.get(owner)))
    measured_causes = {"data": was.get("data_seconds"), **profiled_causes(index)}
    for cause, seconds in said_time.items():
        if cause != "step_seconds" and (seconds or measured_causes.get(cause)):
            rows.append(row(f"{cause} time", "s", seconds, measured_causes.get(cause)))
    return [one for one in rows if one["forecast"] is not None or one["measured"] is not None]


def profiled_causes(index: JournalIndex) -> dict[str, Any]:
    """Seconds by cause, where the run was profiled."""
    return as_dict(index.latest.get("profile", {}).get("causes"))


def row(what: str, unit: str, said: Any, was: Any) -> dict[str, Any]:
    said, was = (value if number(value) else None for value in (said, was))
    off = said / was - 1 if said is not None and was else None
    return {"what": what, "unit": unit, "forecast": said, "measured": was, "off": off}


def sum_of(owners: dict[str, Any]) -> float | None:
    return sum(numbers(list(owners.values()))) if owners else None


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ranks(index: JournalIndex) -> list[dict[str, Any]]:
    """Each rank's own time, waiting and memory over the last reports; who holds the others up."""
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
            "straggles": count > 1 and seconds > SLOW * usual,
        }
        for rank, seconds in enumerate(own)
    ]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
