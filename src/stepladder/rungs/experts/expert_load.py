"""How evenly the routers of a model use its experts: tokens by layer and expert, of a whole batch.

Each forward pass of a step adds its counts to a table on the device; ranks add theirs up once a
step, and nobody waits for the device. A pass that is repeated in backward counts twice, in all
experts alike, so only shares are reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.model.anatomy.expert_lists import ExpertList, expert_lists, is_named_expert
from stepladder.model.builtin.mixture import mixtures_of
from stepladder.plan.layout import COPIES
from stepladder.world import World

from .exchange import ExpertRanks
from .foreign_mixtures import WHOLE, stacked_experts
from .listed_experts import spread_lists


@dataclass(slots=True)
class ExpertLoad:
    """The table of this batch, with a row for each layer of the model that has a router."""

    experts: dict[str, int]  # of each layer, by its mixture's name
    counts: Tensor  # (layers, most experts); rows of other pipeline stages stay zero
    world: World
    ranks: ExpertRanks | None = None  # that the experts are spread over

    @classmethod
    def of(
        cls, module: nn.Module, world: World, ranks: ExpertRanks | None = None
    ) -> ExpertLoad | None:
        """Have the mixtures of a module count; None for a model without any."""
        own, foreign, listed = mixtures_of(module), whole_counts(module), listed_experts(module)
        here = {name: part.num_experts for name, part in own}
        here |= {name: count for name, _, count in foreign}
        here |= {one.name: len(one.keys) for one in listed}
        every = here
        if world.layout.pipeline > 1:  # else all ranks have all layers
            texts = world.gather_texts(json.dumps(here))
            every = {name: count for text in texts for name, count in json.loads(text).items()}
        if not every:
            return None
        names = sorted(every, key=in_natural_order)
        most = max(every.values())
        counts = torch.zeros(len(names), most, device=world.device)
        rows = {name: counts[index, : every[name]] for index, name in enumerate(names)}
        for name, mixture in own:
            mixture.load = rows[name]
        for name, part, _ in foreign:
            part.register_forward_pre_hook(partial(count_chosen, rows[name]), with_kwargs=True)
        for one in listed:
            for index, expert in enumerate(one.experts):
                count = partial(count_rows, rows[one.name][index])
                expert.register_forward_pre_hook(count, with_kwargs=True)
        return cls({name: every[name] for name in names}, counts, world, ranks)

    def start(self) -> None:
        self.counts.zero_()
        if self.ranks:
            self.ranks.sent_bytes = 0

    @property
    def sent_bytes(self) -> int | None:
        """Of this batch so far, by this rank."""
        return None if self.ranks is None else self.ranks.sent_bytes

    def numbers(self, counts: Tensor, sent_bytes: int | None) -> dict[str, Any]:
        """A report's numbers, those that there are. Waits for the device."""
        if not (shares := self.shares(counts)):
            return {}
        found = {"experts": shares, "expert_load": busiest(shares.values())}
        found["dead_experts"] = sum(row.count(0.0) for row in shares.values())
        if self.ranks is None:
            return found
        by_rank = [shares_of_ranks(row, self.ranks.ways) for row in shares.values()]
        return {**found, "expert_rank_load": busiest(by_rank), "expert_sent_bytes": sent_bytes}

    def of_batch(self) -> Tensor:
        """The counts of all ranks; every rank calls it once a step."""
        return self.world.sum(self.counts.clone(), *COPIES, "pipeline")

    def shares(self, counts: Tensor) -> dict[str, tuple[float, ...]]:
        """By layer, the share of the tokens' choices that each expert got. Waits for the device."""
        found = {}
        for (name, experts), row in zip(self.experts.items(), counts.tolist()):
            total = sum(row)
            found[name] = tuple(count / total for count in row[:experts]) if total else ()
        return {name: row for name, row in found.items() if row}


def busiest(table: Iterable[Sequence[float]]) -> float:
    """The largest share of any row, over an even one."""
    return max(len(row) * max(row) for row in table)


def shares_of_ranks(row: Sequence[float], ways: int) -> list[float]:
    """Each rank's, which holds so many experts one after the other."""
    each = len(row) // ways
    return [sum(row[at : at + each]) for at in range(0, len(row), each)]


def whole_counts(module: nn.Module) -> list[tuple[str, nn.Module, int]]:
    """Other people's mixtures, whose experts may be on several ranks by now."""
    found = [(name, part) for name, part in module.named_modules() if hasattr(part, WHOLE)]
    spread = [(name, part, getattr(part, WHOLE)) for name, part in found]
    return spread or stacked_experts(module)


def count_chosen(row: Tensor, part: nn.Module, given: Any, named: dict[str, Any]) -> None:
    """Before a mixture's forward: who was chosen, where a step learns from it."""
    chosen = named.get("top_k_index", given[1] if len(given) > 1 else None)
    if chosen is not None and torch.is_grad_enabled():
        numbers = torch.arange(len(row), device=chosen.device)
        row.add_((chosen.reshape(-1, 1) == numbers).sum(0))


def listed_experts(module: nn.Module) -> list[ExpertList]:
    """Lists of experts that say so by their names, or of which ranks hold some."""
    found = (one for one in expert_lists(module) if is_named_expert(one.name))
    return spread_lists(module) or list(found)


def count_rows(place: Tensor, expert: nn.Module, given: Any, named: dict[str, Any]) -> None:
    """Before an expert's forward: how many rows it was called with, those of other ranks too."""
    rows = next((one for one in (*given, *named.values()) if isinstance(one, Tensor)), None)
    if rows is not None and torch.is_grad_enabled():
        place.add_(rows.shape[:-1].numel())


def in_natural_order(name: str) -> list[tuple[int, str]]:
    """Numbers in a name by their size."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
