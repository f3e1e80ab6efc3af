"""The words of a plan that is left to be chosen: "auto tune=30 bf16"."""

from __future__ import annotations

from stepladder.errors import PlanError

from .plan import Plan

TUNE = "tune="


def automatic_words(plan: Plan | str | None) -> str:
    """The words of a plan that is left to be chosen; nothing of any other."""
    return plan if isinstance(plan, str) and is_automatic(plan.split()) else ""


def is_automatic(words: list[str]) -> bool:
    """Whether the words of a plan leave the rest to be chosen."""
    return words[:1] == ["auto"]


def written_plan(text: str) -> Plan:
    """What the words of a plan settle by themselves, whatever else is chosen."""
    words = text.split()
    if not is_automatic(words):
        return Plan.parse(text)
    read_budget(words)
    return Plan.parse(" ".join(without_budget(words)[1:]))


def read_budget(words: list[str]) -> float | None:
    """Seconds that trials may take, as written; None where nothing is."""
    given = [word.removeprefix(TUNE) for word in words if word.startswith(TUNE)]
    if not given:
        return None
    if len(set(given)) > 1:
        raise PlanError("tune", f"given twice, as {given[0]} and {given[-1]}", "Keep one.")
    text = given[-1]
    try:
        seconds = 0.0 if text == "off" else float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise PlanError(
            "tune", f"'{text}' is not a number of seconds", "Write tune=60 or tune=off."
        )
    return seconds


def without_budget(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith(TUNE)]
