"""The table of a run of the fuzzer: how many pairs were the same, refused and why, or bugs."""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch

from .runner import Outcome

DETAILS = 2000  # characters of a bug's traceback


@dataclass
class Summary:
    """Outcomes added up."""

    pairs: int = 0
    steps: int = 0
    same: int = 0
    refused: int = 0
    announced: int = 0  # differ, and the run said that results depend on its plan
    illegal: int = 0  # the plain loop fails or diverges: not counted among the pairs
    resumed: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    bugs: list[dict[str, Any]] = field(default_factory=list)
    machines: Counter[str] = field(default_factory=Counter)  # that the pairs were tried on

    def add(self, row: dict[str, Any]) -> None:
        if row["outcome"] == "illegal":
            self.illegal += 1
            return
        self.pairs += 1
        self.machines[row["machine"]] += 1
        self.steps += row["steps"]
        for part, outcome in row["parts"].items():
            if part != "train":
                self.resumed[f"{part}: {outcome}"] += 1
        if row["outcome"] == "bug":
            self.bugs.append(row)
        elif row["outcome"] == "refused":
            self.refused += 1
            self.reasons[reason(row["text"])] += 1
        elif row["outcome"] == "announced":
            self.announced += 1
        else:
            self.same += 1

    def to_json(self) -> dict[str, Any]:
        share = self.refused / self.pairs if self.pairs else 0.0
        return {
            "pairs": self.pairs, "steps": self.steps, "same": self.same,
            "refused": self.refused, "refused_share": round(share, 4),
            "refused_because": dict(self.reasons.most_common()), "resumed": dict(self.resumed),
            "machines": dict(self.machines), "illegal": self.illegal, "bugs": len(self.bugs),
            "bugs_by_kind": dict(Counter(row["kind"] for row in self.bugs)),
            "seeds_of_bugs": [row["seed"] for row in self.bugs][:200],
        }  # fmt: skip


def row_of(outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "seed": outcome.problem.seed, "plan": outcome.problem.layout.plan,
        "ranks": outcome.problem.layout.ranks, "outcome": verdict.outcome, "kind": verdict.kind,
        "stage": verdict.stage, "text": verdict.text, "steps": outcome.steps,
        "seconds": round(outcome.seconds, 2), "signature": list(verdict.signature),
        "parts": {name: part.outcome for name, part in outcome.parts.items()},
        "details": verdict.details[-DETAILS:] if verdict.outcome == "bug" else "",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
    }  # fmt: skip


def reason(text: str) -> str:
    """A refusal without its numbers and names."""
    first = text.partition("\n")[0].partition(". ")[0]
    return re.sub(r"\d[\d.e-]*", "N", re.sub(r"'[^']*'", "'…'", first))[:110]


def add_up(rows: Iterable[dict[str, Any]]) -> Summary:
    summary = Summary()
    for row in rows:
        summary.add(row)
    return summary


def write_table(summary: Summary, folder: Path, *, command: str, note: str = "") -> None:
    """benchmarks/results/fuzz.md and fuzz.json."""
    found = {"command": command.replace("`", ""), "date": date.today().isoformat(), "note": note,
             **summary.to_json()}  # fmt: skip
    (folder / "fuzz.json").write_text(json.dumps(found, indent=1) + "\n")
    machines = "; ".join(f"{count:,} pairs on {name}" for name, count in summary.machines.items())
    resumed = ", ".join(f"{name} {count:,}" for name, count in sorted(summary.resumed.items()))
    lines = [
        "# Generated training problems", "",
        f"`{command}`, {found['date']}: {machines}. Each pair is a random module, loss, data and "
        "optimizer under a random plan, trained for 5 steps and compared with a plain torch loop "
        "over the whole batch in one process.", "", *([note, ""] if note else []),
        "| pairs | steps | same | announced | refused before the first step | bugs |",
        "|---|---|---|---|---|---|",
        f"| {summary.pairs:,} | {summary.steps:,} | {summary.same:,} | {summary.announced:,} "
        f"| {summary.refused:,} ({found['refused_share']:.1%}) | {len(summary.bugs)} |", "",
        "Announced: results differ, and the run said at its start that they depend on the plan "
        "(BatchNorm in micro-batches).",
        "",
        f"Resumed from the checkpoint after 3 steps: {resumed or 'none'}.", "",
        "| refused because | pairs |", "|---|---|",
        *(f"| {why.replace('|', '/')} | {count} |" for why, count in summary.reasons.most_common()),
    ]  # fmt: skip
    if summary.bugs:
        kinds = Counter((row["kind"], row["signature"][2]) for row in summary.bugs)
        lines += ["", "| bug | pairs |", "|---|---|"]
        lines += [f"| {kind}: {text.replace('|', '/')} | {n} |"
                  for (kind, text), n in kinds.most_common(40)]  # fmt: skip
    (folder / "fuzz.md").write_text("\n".join(lines) + "\n")
