"""Running trials on long-lived ranks: train, save, drop, resume; ranks that hang are replaced."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.launch import Failure, Ranks
from tests.ranks import settle

from .judge import Verdict, judge_numbers, judge_records
from .oracle import Trajectory, train
from .problems.plans import Layout
from .problems.problem import SAVED_AT, Problem
from .trial import run_rank

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # checkpoints need no disk here
HANG_SECONDS = 60.0  # a trial takes about one
PATIENCE = 5  # times as long for a second try: a busy machine gets through, a hang does not
FRESH_RANKS = 50  # trials on the same processes: each leaves threads of gloo behind


@dataclass
class Outcome:
    """What came of one problem: the trial, and each resume."""

    problem: Problem
    parts: dict[str, Verdict] = field(default_factory=dict)  # "train", "resume", "resume elsewhere"
    steps: int = 0  # optimizer steps that stepladder took
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst of the parts; refused if training was."""
        for verdict in self.parts.values():
            if verdict.outcome == "bug":
                return verdict
        return self.parts["train"]


class Runner:
    """Context with ranks on which problems are tried."""

    def __init__(
        self,
        *,
        pool: Ranks | None = None,
        run_rank: Callable[..., Any] = run_rank,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self.pool = pool or Ranks(4, threads=1, between_calls=settle, grace_seconds=5)
        self.owned = pool is None
        self.run_rank = run_rank  # a trial's part on a rank, or the same with a defect planted
        self.hang_seconds = hang_seconds
        self.tried = 0

    def __enter__(self) -> Runner:
        if self.owned:
            self.pool.__enter__()
        return self

    def __exit__(self, *exit: object) -> None:
        if self.owned:
            self.pool.__exit__()

    def try_problem(self, problem: Problem) -> Outcome:
        """Train, resume in the same and in another layout, and compare each with the oracle."""
        self.tried += 1
        if self.owned and self.tried % FRESH_RANKS == 0:
            self.pool.restart()
        outcome, began = Outcome(problem), time.monotonic()
        try:
            expected = train(problem, saved_at=SAVED_AT)
        except Exception as error:  # a gap in the grammar, not a bug of stepladder
            outcome.parts["train"] = Verdict("illegal", text=f"{type(error).__name__}: {error}")
            return outcome
        if not all(abs(loss) < 1e4 for loss in (*expected.losses, expected.evaluation)):
            outcome.parts["train"] = Verdict("illegal", text="the plain loop diverges")
            return outcome
        self.take_stages(problem, expected, outcome, self.hang_seconds)
        if outcome.verdict.kind == "hang":
            outcome = Outcome(problem)
            self.take_stages(problem, expected, outcome, PATIENCE * self.hang_seconds)
        outcome.seconds = time.monotonic() - began
        return outcome

    def take_stages(
        self, problem: Problem, expected: Trajectory, outcome: Outcome, hang_seconds: float
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY) as folder:
            self.stages(problem, expected, Path(folder), outcome, hang_seconds)

    def stages(
        self, problem: Problem, expected: Trajectory, folder: Path, outcome: Outcome,
        hang_seconds: float,
    ) -> None:  # fmt: skip
        given = (expected, folder, outcome, hang_seconds)
        if self.part("train", problem, problem.layout, *given).outcome != "same":
            return
        if problem.same_again:
            self.part("resume", problem, problem.layout, *given)
        if problem.again:
            self.part("resume elsewhere", problem, problem.again, *given)

    def part(
        self, name: str, problem: Problem, layout: Layout, expected: Trajectory, folder: Path,
        outcome: Outcome, hang_seconds: float,
    ) -> Verdict:  # fmt: skip
        place = folder / name.replace(" ", "-")
        place.mkdir()
        if name != "train":
            (place / "saved").symlink_to(folder / "train" / "saved")
        args = (problem, layout, str(place), name != "train", True)
        found = self.pool.attempt(
            self.run_rank, args, ranks=layout.ranks, timeout_seconds=hang_seconds
        )
        if isinstance(found, Failure):
            self.pool.restart()
            written = [file.read_text()[-1500:] for file in sorted(place.glob("output-*"))]
            details = "\n".join([found.details, *written])
            kind = "died" if "ended" in found.problem else "hang"
            verdict = Verdict("bug", kind, found.sentence, details, name)
        else:
            outcome.steps += found[0]["steps"]
            verdict = judge_records(found, name) or judge_numbers(
                problem, expected, found[0], place, name
            )
        outcome.parts[name] = verdict
        return verdict
