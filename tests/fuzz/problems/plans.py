"""Plans of generated problems, as text: what a user might write for such a module.

Combinations that the plan language itself excludes (kernels on several ranks, a layout that does
not multiply up) are not drawn. Whether a module can be cut is for stepladder to find out; plans
that cut it are drawn more often for modules that look as if they could be.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Layout:
    """A plan and the ranks it runs on."""

    plan: str
    ranks: int

    @property
    def ways(self) -> int:
        """Ranks that split the rows between them."""
        return self.ranks // (self.number("tensor") * self.stages * self.number("context"))

    @property
    def stages(self) -> int:
        return self.number("pipeline")

    @property
    def passes(self) -> int:
        """Micro-batches of a step, where the plan says how many."""
        return self.number("accumulate")

    def changed(self, precision: str, words: list[str]) -> Layout:
        """The same in another precision, with more words."""
        text = self.plan.replace("fp32", precision, 1)
        return Layout(" ".join([text, *words]), self.ranks)

    def number(self, key: str) -> int:
        words = [word.partition("=") for word in self.plan.split()]
        return next((int(value) for name, _, value in words if name == key), 1)


ONE = ("", "", "zero3", "zero2", "ddp", "zero1")
DATA = ("ddp", "ddp", "zero1", "zero2", "zero3", "zero3")


def draw_layout(rng: Random, module: dict[str, Any], *, cuts: float = 0.3) -> Layout:
    """A plan for one to four ranks; `cuts` is how often the module itself is cut."""
    ranks = rng.choices((1, 2, 3, 4), (30, 46, 6, 18))[0]
    if ranks == 1:
        return one_rank(rng, module)
    kinds = [kind for kind in ("tensor", "pipeline", "context") if suits(kind, module, rng)]
    if kinds and rng.random() < cuts:
        return cut_layout(rng, module, rng.choice(kinds), ranks)
    words = [rng.choice(DATA)]
    if ranks == 4 and rng.random() < 0.25:
        words = [rng.choice(("zero1", "zero2", "zero3")), "shard=2", "replicate=2"]
    return finished(rng, words, ranks, module)


def suits(kind: str, module: dict[str, Any], rng: Random) -> bool:
    blocks = module["blocks"]
    if rng.random() < 0.05:  # now and then what cannot be
        return True
    if kind == "pipeline":
        return len(blocks) >= 2 and module["kind"] != "image"
    types = {block["type"] for block in blocks}
    if kind == "tensor":
        alike = len(types) == 1 and types <= {"mlp", "attention"} and module["kind"] != "vector"
        return alike and all(divides(block) for block in blocks)
    return (
        types == {"attention"}
        and all(block.get("style") == "sdpa" for block in blocks)
        and module["kind"] == "tokens"
        and not module["pooled"]
        and module.get("positions", "none") == "none"
    )


def divides(block: dict[str, Any]) -> bool:
    """Whether two ranks could cut a block's heads and widths."""
    mlp = block.get("mlp", block)
    return block.get("heads", 2) % 2 == 0 and mlp.get("hidden", 2) % 2 == 0


def cut_layout(rng: Random, module: dict[str, Any], kind: str, ranks: int) -> Layout:
    if ranks == 4 and rng.random() < 0.7:
        word = rng.choice(DATA)
        axis = "replicate=2" if word == "ddp" else "shard=2"
        words = [word, axis, f"{kind}=2"]
    else:
        words = [f"{kind}={ranks}"]
    if kind == "pipeline":
        words += rng.choice(([], [], ["schedule=gpipe"]))
    return finished(rng, words, ranks, module)


def one_rank(rng: Random, module: dict[str, Any]) -> Layout:
    words = [word for word in (rng.choice(ONE),) if word]
    if module["kind"] == "tokens" and rng.random() < 0.3:
        words.append("kernels=on")
    return finished(rng, words, 1, module)


def finished(rng: Random, words: list[str], ranks: int, module: dict[str, Any]) -> Layout:
    """The plan with its micro-batches and recomputation."""
    text = ["fp32", *words]
    stages = Layout(" ".join(words), ranks).stages
    if stages > 1:
        text.append(f"accumulate={stages * rng.choice((1, 2))}")
    else:
        how = rng.choice(("", "", "micro", "accumulate"))
        if how == "micro":
            text.append(f"micro={rng.choice((1, 2, 3))}")
        elif how:
            text.append(f"accumulate={rng.choice((2, 3))}")
    if module["blocks"] and rng.random() < 0.2:
        text.append(f"recompute={rng.choice(('blocks', 'selective', 'every:2'))}")
    if ranks > 1 and module["kind"] == "tokens" and rng.random() < 0.3:
        text.append("kernels=on")
    return Layout(" ".join(text), ranks)
