"""Rows of image models on one device, which name a model where others give a shape.

Only names that tell the whole model are read: vision transformers, and ResNets on images of 224
pixels. Every other family would need its module.
"""

from __future__ import annotations

import re
from dataclasses import replace

from stepladder.errors import StepladderError
from stepladder.plan import PRECISIONS, BatchSplit, Optimizer, Plan
from stepladder.workload import Facts, MatmulFacts, Part, Shape, facts_of_shape, find_facts
from stepladder.workload.convnet import RESNETS

Row = dict[str, str]

VITS = {  # width, layers, heads, width inside the MLP
    "tiny": (192, 12, 3, 768), "small": (384, 12, 6, 1536), "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096), "huge": (1280, 32, 16, 5120), "giant": (1408, 40, 16, 6144),
}  # fmt: skip
CLASSES, COLOURS = 1000, 3


def facts_of_images(row: Row) -> Facts:
    """The facts of a model that its name tells whole."""
    name, size = row["model"], int(row["image_size"])
    if name in RESNETS and size == 224:
        return find_facts(name)
    found = re.fullmatch(r"(?:vit|deit)_(\w+?)_patch(\d+)_\d+(?:_in21k)?", name)
    if found is None or found[1] not in VITS:
        problem = f"the shape of {name} is not told by its name, in row {row['id']}"
        raise StepladderError("model", problem, "Describe its module instead.")
    return facts_of_vit(found[1], size, int(found[2]))


def facts_of_vit(name: str, size: int, patch: int) -> Facts:
    """A vision transformer: patches by one product, blocks that see all of them, one head."""
    width, layers, heads, inside = VITS[name]
    length = (size // patch) ** 2 + 1
    shape = Shape("gpt", layers, width, heads, heads, inside, CLASSES, sequence=length)
    facts = facts_of_shape(shape, name=name)
    window = COLOURS * patch**2
    entry = replace(
        facts.entry, parameters=window * width + length * width,
        matmuls=(MatmulFacts(length, window, width, backward=1),),
    )  # fmt: skip
    blocks = [replace(p, attention=replace(p.attention, causal=False)) for p in facts.parts[1:-1]]
    head = replace(facts.exit, matmuls=(MatmulFacts(1, width, CLASSES),))
    parts: tuple[Part, ...] = (entry, *blocks, head)
    image = 4.0 * COLOURS * size**2
    return Facts(name=facts.name, parts=parts, sample_bytes=image)


def plan_of_images(row: Row) -> Plan:
    """One device, one micro-batch; attention of its time writes the scores down."""
    half = "fp16" if "16" in row["precision"] else "fp32"
    half = "bf16" if "bf16" in row["precision"] or "bfloat16" in row["precision"] else half
    batch = int(row["batch"])
    return Plan(
        precision=PRECISIONS[half],
        batch=BatchSplit(batch, batch),
        compile=row["compile"][:1].lower() in ("y", "t", "1"),
        kernels=("layout",) if row["channels_last"][:1].lower() == "y" else False,
        attention="plain" if "torch 1." in row["notes"] else "auto",
        optimizer=Optimizer(name="sgd") if "SGD" in row["notes"] else Optimizer(),
    )
