"""Starting a run's ranks on this machine: what is settled before the first of them is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.errors import PlanError
from stepladder.launch import launch_local
from stepladder.launch.local.rendezvous import Nodes
from stepladder.plan import Plan, Recipe
from stepladder.plan.refit import spread
from stepladder.world import Place

from .plan_for_ranks import check_for_ranks, fit_ranks

RESTARTS = 3


@dataclass(frozen=True, slots=True)
class RankStart:
    """How many ranks are started here, among which machines, how often again."""

    ranks: int
    restarts: int = RESTARTS
    nodes: Nodes | None = None

    @property
    def elastic(self) -> bool:
        """Whether machines may leave and return."""
        return self.nodes is not None and self.nodes.elastic

    @property
    def worlds(self) -> list[int]:
        """The numbers of ranks that there may be."""
        return [self.ranks * count for count in (self.nodes.counts() if self.nodes else [1])]

    def settle(self, plan: Plan | None, recipe: Recipe) -> str:
        """Check the plan on every number of ranks there may be; a sentence where it names none."""
        place = Place.from_environment()
        if place.launched:
            raise PlanError(
                "ranks",
                f"{self.ranks} asked for in a process that is one of {place.num_ranks} already",
                "Leave --ranks out; the launcher has started them.",
            )
        many = self.worlds[-1]
        chosen = settled = spread(plan or Plan(), many)
        for ranks in self.worlds:
            fitted, _ = fit_ranks(chosen, recipe, ranks, elastic=self.elastic)
            settled = check_for_ranks(fitted, recipe, ranks, uneven=self.elastic)
        # Several machines would all say it; the first line of rank 0 names the layout too.
        if chosen == (plan or chosen) or self.nodes is not None:
            return ""
        return f"The plan names no layout: data parallel on {many} ranks, {settled.layout}."

    def launch(self, words: Sequence[str], recipe: Recipe, folder: Path) -> int:
        """Start the ranks, each as `python WORDS`, and follow them; the exit code."""
        return launch_local(
            list(words),
            ranks=self.ranks,
            folder=folder,
            restarts=self.restarts,
            nodes=self.nodes,
            wait_seconds=recipe.run.timeout_seconds,
            grace_seconds=recipe.run.grace_seconds,
        )
