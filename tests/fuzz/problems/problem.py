"""A problem: what is trained, on what data, under which plan, and how it is resumed.

`Problem.draw(seed)` always makes the same one. A problem is plain values, so it can be written to a
file, sent to ranks, and made smaller.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from .additions import add_to_data, add_to_module, exact_word, words_of_plan
from .grammar import chance, draw_loss, draw_module, draw_optimizer
from .losses import is_class_loss
from .optimizers import bring_optimizer
from .plans import Layout, draw_layout

STEPS, SAVED_AT = 5, 3


@dataclass(frozen=True)
class Problem:
    """One generated case."""

    seed: int
    module: dict[str, Any]
    loss: dict[str, Any]
    data: dict[str, Any]
    optimizer: dict[str, Any]
    layout: Layout
    again: Layout | None = None  # resumed once more in this layout
    same_again: bool = False  # resumed in the same layout

    @classmethod
    def draw(cls, seed: int) -> Problem:
        rng = Random(seed)
        module = draw_module(rng)
        loss = draw_loss(rng, module)
        layout = draw_layout(rng, module)
        data = draw_data(rng, module, loss, layout)
        summed = loss.get("reduction") == "sum"
        optimizer = draw_optimizer(rng, 0.002 if summed else rng.choice((0.05, 0.1, 0.2)))
        optimizer = bring_optimizer(Random(f"{seed} optimizer"), optimizer, summed=summed)
        again = draw_layout(rng, module) if chance(rng, 0.35) else None
        same_again = chance(rng, 0.35)
        more = Random(f"{seed} more")
        module, data = add_to_module(more, module), add_to_data(more, module, loss, data)
        precision, words = words_of_plan(more)
        layout = layout.changed(precision, words)
        again = again and again.changed(precision, [])
        if layout.plan == "fp32" and chance(Random(f"{seed} auto"), 0.6):
            # Two plans are tried on copies: with and without kernels. Nobody may notice.
            layout = Layout("auto compile=off tune=60", ranks=1)
        exact = exact_word(Random(f"{seed} exact"), layout.plan, layout.ranks, data["rows"])
        layout = layout.changed(precision, exact)
        return cls(seed, module, loss, data, optimizer, layout, again, same_again)

    @property
    def exact(self) -> bool:
        """Whether all is computed in float32 or more, as the plain loop computes it."""
        return self.layout.plan.startswith(("fp32", "auto"))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Problem:
        found = json.loads(text)
        again = found["again"] and Layout(**found["again"])
        return cls(**{**found, "layout": Layout(**found["layout"]), "again": again})

    @property
    def optimizer_text(self) -> str:
        """The optimizer in stepladder's words."""
        how = dict(self.optimizer)
        how.pop("rate", None)  # beside the words
        words = [how.pop("name")]
        group = how.pop("group", None)
        words += [f"{key}={value}" for key, value in how.items()]
        if group:
            words.append(f"group={group['pattern']}:lr=x{group['factor']},wd={group['wd']}")
        return " ".join(words)

    def __str__(self) -> str:
        module = {k: v for k, v in self.module.items() if k not in ("blocks", "extras")}
        lines = [
            f"problem {self.seed}: {self.layout.plan} on {self.layout.ranks} rank(s)",
            f"  module: {shown(module)}",
            *(f"  block: {shown(block)}" for block in self.module["blocks"]),
            *(f"  with: {shown(extra)}" for extra in self.module["extras"]),
            f"  loss: {shown(self.loss)}; data: {shown(self.data)}",
            f"  optimizer: {self.optimizer_text} {self.optimizer.get('rate', '')}".rstrip(),
        ]
        if self.same_again:
            lines.append("  resumed in the same layout")
        if self.again:
            lines.append(f"  resumed with: {self.again.plan} on {self.again.ranks} rank(s)")
        return "\n".join(lines)


def shown(spec: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in spec.items() if v not in (False, None, [], "none"))


def draw_data(
    rng: Random, module: dict[str, Any], loss: dict[str, Any], layout: Layout
) -> dict[str, Any]:
    """How many rows each step has, which targets are ignored, how ranks are given their rows."""
    unit = layout.ways * layout.passes
    if layout.ways == 1 or chance(rng, 0.6):
        rows = unit * max(1, rng.choice((4, 6, 8, 12)) // unit)
        rows = max(rows, 2)
        each = [rows] * STEPS
    else:
        most = max(12, unit + 2)
        rows = rng.randint(max(unit, 4), most)
        each = [rows] * STEPS if chance(rng, 0.5) else [
            rng.randint(max(unit, 4), most) for _ in range(STEPS)
        ]  # fmt: skip
    classes = is_class_loss(loss)
    data: dict[str, Any] = {"rows": each, "evaluated": max(each), "classes": classes}
    ignoring = loss["type"] in ("cross_entropy", "weighted", "masked_mean", "own", "row_mean")
    if classes and ignoring and chance(rng, 0.4):
        data["ignored"] = rng.choice(("ragged", "rows", "single"))
        mark = loss.get("ignore_index", -100)
        data["mark"] = mark
        if loss["type"] == "masked_mean" and chance(rng, 0.3):
            data["mark"] = loss["ignore_index"] = -1
    if len(set(each)) == 1 and chance(rng, 0.25):
        data["feed"] = "batches"
    elif layout.ways > 1 and chance(rng, 0.3):
        data["feed"] = "rank"
    else:
        data["feed"] = "global"
    return data
