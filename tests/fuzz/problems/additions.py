"""Features that came to the grammar later, drawn from a generator of their own.

So a seed keeps the problem it had before, with something added now and then.
"""

from __future__ import annotations

from random import Random
from typing import Any

Spec = dict[str, Any]
COUNTED = ("cross_entropy", "weighted", "masked_mean", "row_mean", "own")  # may ignore targets

NOT_EXACT = (  # words that exact=ranks excludes
    "tensor", "pipeline", "context", "micro", "accumulate", "kernels", "replicate", "compile",
)  # fmt: skip


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def add_to_module(rng: Random, module: Spec) -> Spec:
    """The module with dropout that is switched off, a count of calls, activations in place, or an
    output that torch cannot look into."""
    blocks, extras = module["blocks"], [dict(extra) for extra in module["extras"]]
    types = {block["type"] for block in blocks}
    if types & {"mlp", "attention"} and chance(rng, 0.06):
        extras.append({"type": "dropout", "p": rng.choice((0.1, 0.5))})
    if chance(rng, 0.04):
        extras.append({"type": "annealed"})
    if types & {"mlp", "attention"} and chance(rng, 0.08):
        blocks = [overwriting(block) for block in blocks]
    for extra in extras:
        if extra.get("dtype") == "expanded" and chance(rng, 0.5):
            extra["dtype"] = "expanded_one"
    output = module["output"]
    if output == "class" and chance(rng, 0.5):
        output = "object"
    return {**module, "blocks": blocks, "extras": extras, "output": output}


def overwriting(block: Spec) -> Spec:
    """A block whose MLP writes its activation over what the linear layer returned."""
    if block["type"] == "attention":
        return {**block, "mlp": {**block["mlp"], "overwrite": True}}
    return {**block, "overwrite": True} if block["type"] == "mlp" else block


def add_to_data(rng: Random, module: Spec, loss: Spec, data: Spec) -> Spec:
    """The data with rows of unequal length, or in a DataLoader."""
    pick = rng.random()
    if pick < 0.1 and can_be_ragged(module, loss, data):
        kept = {key: value for key, value in data.items() if key not in ("ignored", "mark")}
        return {**kept, "feed": "ragged", "lengths": rng.randrange(1000)}
    if 0.1 <= pick < 0.16 and len(set(data["rows"])) == 1:
        return {**data, "feed": "loader"}
    return data


def can_be_ragged(module: Spec, loss: Spec, data: Spec) -> bool:
    fixed = any(block["type"] == "mixer" for block in module["blocks"])
    plain = loss["type"] in COUNTED and not {"ignore_index", "z", "spread"} & set(loss)
    several = module["kind"] == "tokens" and not module["pooled"]
    # As many classes as positions are refused by name, where they would come in a later batch.
    clear = loss["type"] != "cross_entropy" or module["classes"] > module["length"]
    return several and plain and clear and not fixed and len(set(data["rows"])) == 1


def exact_word(rng: Random, plan: str, ranks: int, rows: list[int]) -> list[str]:
    """Now and then, for ranks that only share rows: the same bits on any number of them."""
    words, slices = plan.split(), rng.choice((2, 4))
    cut = (
        "tensor",
        "pipeline",
        "context",
        "micro",
        "accumulate",
        "kernels",
        "replicate",
        "compile",
    )
    if words[0] == "auto" or any(word.startswith(cut) for word in words):
        return []
    fits = slices % ranks == 0 and all(count % slices == 0 for count in rows)
    return [f"exact=ranks:{slices}"] if fits and chance(rng, 0.25) else []


def words_of_plan(rng: Random) -> tuple[str, list[str]]:
    """The precision, and words to add to the plan."""
    precision = "bf16" if chance(rng, 0.03) else "fp32"
    return precision, ["compile=on"] if chance(rng, 0.025) else []
