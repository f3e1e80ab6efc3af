"""The grammar: modules, losses and optimizers drawn from a seeded generator, as plain values."""

from __future__ import annotations

from random import Random
from typing import Any

from .blocks import STREAMS
from .peculiarities import BUFFERS

Spec = dict[str, Any]


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def draw_module(rng: Random) -> Spec:
    kind = rng.choices(("tokens", "frames", "vector", "image"), (50, 15, 25, 10))[0]
    stream = {"tokens": "sequence", "frames": "sequence"}.get(kind, kind)
    width = rng.choice((4, 8, 8, 12, 16))
    spec: Spec = {
        "kind": kind, "width": width, "length": rng.choice((4, 6, 8, 8, 12)),
        "classes": rng.choice((2, 3, 5, 7, 10)), "features": rng.choice((1, 3, 5, 8)),
        "pooled": kind == "image" or (stream == "sequence" and chance(rng, 0.35)),
        "blocks": draw_blocks(rng, stream, width), "output": "tensor",
        "final_norm": chance(rng, 0.4), "head_bias": chance(rng, 0.6),
    }  # fmt: skip
    if kind == "tokens":
        spec["vocab"] = rng.choice((7, 11, 16, 24))
        spec["positions"] = rng.choice(("none", "none", "learned", "table"))
        if chance(rng, 0.3):
            spec |= {"tied": True, "classes": spec["vocab"], "head_bias": chance(rng, 0.2)}
        if chance(rng, 0.04):
            spec["max_norm"] = 1.0
        if chance(rng, 0.08):
            spec["padding_idx"] = 0
    if chance(rng, 0.15):
        spec["output"] = rng.choice(("tuple", "dict", "nested", "class"))
    if chance(rng, 0.1):
        spec["cap"] = rng.choice((2.0, 5.0))
    if len(spec["blocks"]) > 1 and chance(rng, 0.1):
        spec["shared"] = [1]
    if chance(rng, 0.15):
        spec["sequential"] = True
    if chance(rng, 0.05):
        spec["dtype"] = "float64"
    spec["extras"] = draw_extras(rng, spec)
    return spec


def draw_blocks(rng: Random, stream: str, width: int) -> list[Spec]:
    """Mostly alike, as a list of blocks is; now and then each of its own kind."""
    count = rng.choices((0, 1, 2, 3, 4), (8, 12, 45, 15, 20))[0]
    if chance(rng, 0.15):
        return [draw_block(rng, stream, width) for _ in range(count)]
    return [dict(one) for one in [draw_block(rng, stream, width)] * count]


def draw_block(rng: Random, stream: str, width: int) -> Spec:
    weights = {"mlp": 4, "attention": 6, "recurrent": 2, "conv": 2}
    kinds = STREAMS[stream]
    kind = rng.choices(kinds, [weights.get(one, 1) for one in kinds])[0]
    norm = rng.choices(("layer", "rms", "batch", "group", "none"), (5, 3, 1.2, 1, 2))[0]
    spec: Spec = {"type": kind, "norm": norm, "bias": chance(rng, 0.6)}
    if stream == "image":
        spec["norm"] = rng.choice(("batch", "layer", "group", "instance", "none"))
    if kind == "mlp":
        spec |= draw_mlp(rng, width)
    elif kind == "attention":
        spec["heads"] = rng.choice([n for n in (1, 2, 4) if width % n == 0])
        spec["causal"] = chance(rng, 0.7)
        spec["style"] = rng.choices(("sdpa", "hand", "torch"), (6, 3, 1))[0]
        spec["fused"] = spec["style"] != "torch" and chance(rng, 0.25)
        spec["inferred"] = chance(rng, 0.2)
        spec["mlp"] = {**draw_mlp(rng, width), "norm": norm, "bias": spec["bias"]}
    elif kind == "recurrent":
        spec |= {"cell": rng.choice(("lstm", "gru", "rnn")), "layers": rng.choice((1, 1, 2))}
    elif kind == "conv":
        spec |= {"depthwise": chance(rng, 0.2), "dilation": rng.choice((1, 1, 2))}
    elif kind == "experts":
        spec["experts"] = rng.choice((2, 3))
    return spec


def draw_mlp(rng: Random, width: int) -> Spec:
    activation = rng.choices(("gelu", "relu", "silu", "tanh", "softmax"), (4, 2, 2, 1, 1))[0]
    spec: Spec = {"activation": activation, "gated": chance(rng, 0.3)}
    spec["hidden"] = rng.choice((width, 2 * width, 4 * width, width + 1))
    if chance(rng, 0.05):
        spec["inplace"] = True
    return spec


def draw_extras(rng: Random, module: Spec) -> list[Spec]:
    """What is peculiar about the module; most have nothing, or one thing."""
    extras = []
    for _ in range(rng.choices((0, 1, 2, 3), (45, 35, 15, 5))[0]):
        kind = rng.choices(
            ("buffer", "parameter", "frozen", "zero", "reparametrized", "unused", "cached",
             "gradient_hook", "statistic", "cast"),
            (6, 6, 4, 4, 3, 2, 1, 1.5, 0.7, 0.7),
        )[0]  # fmt: skip
        made = draw_extra(rng, kind, module)
        if made["type"] not in [one["type"] for one in extras]:
            extras.append(made)
    norms = [block.get("norm") for block in module["blocks"]]
    if "batch" in norms and chance(rng, 0.4):
        extras.append({"type": "eval"})
    return extras


def draw_extra(rng: Random, kind: str, module: Spec) -> Spec:
    if kind == "buffer":
        return {"type": kind, "dtype": rng.choice(list(BUFFERS)), "read": chance(rng, 0.4),
                "persistent": chance(rng, 0.8)}  # fmt: skip
    if kind == "parameter":
        shape = rng.choice(((), (1,), (3,), (5, 1), (0,), (0, 4), (1, 7)))
        name = rng.choice(("odd", "odd", "odd", "logit_scale", "weight"))
        return {"type": kind, "shape": list(shape), "read": chance(rng, 0.8), "name": name}
    if kind == "frozen":
        return {"type": kind, "what": rng.choice(("embed", "blocks.0", "head", "bias"))}
    if kind == "zero":
        return {"type": kind, "what": rng.choice(("head", "fc2", "o_proj", "embed", "bias"))}
    if kind == "reparametrized":
        hows = ("weight_norm", "weight_norm", "spectral_norm", "old_weight_norm", "prune")
        return {"type": kind, "how": rng.choice(hows)}
    if kind == "statistic":
        return {"type": kind, "of": rng.choice(("calls", "mean"))}
    return {"type": kind}


def draw_loss(rng: Random, module: Spec) -> Spec:
    regression = rng.choice(("squared_error", "mse", "mse", "l1", "smooth_l1", "huber"))
    if module["kind"] != "tokens" and chance(rng, 0.5):
        spec: Spec = {"type": regression}
        if regression != "squared_error" and chance(rng, 0.15):
            spec["reduction"] = "sum"
    else:
        kind = rng.choices(
            ("cross_entropy", "weighted", "masked_mean", "own", "focal", "row_mean", "contrastive",
             "temperature"),
            (38, 22, 10, 10, 5, 3, 2.5, 2.5),
        )[0]  # fmt: skip
        spec = {"type": kind}
        if kind in ("weighted", "own"):
            spec |= draw_cross_entropy(rng)
    if spec["type"] not in ("cross_entropy", "squared_error", "own") and chance(rng, 0.07):
        spec["penalty"] = 0.01
    return spec


def draw_cross_entropy(rng: Random) -> Spec:
    """Settings of torch's cross-entropy, and terms beside it."""
    spec: Spec = {}
    if chance(rng, 0.35):
        spec["weighted"] = True
    if chance(rng, 0.25):
        spec["smoothing"] = 0.1
    if chance(rng, 0.1):
        spec["reduction"] = "sum"
    if chance(rng, 0.2):
        spec[rng.choice(("z", "spread"))] = 0.01
    if chance(rng, 0.3):
        spec["ignore_index"] = rng.choice((0, -1, 1))
    return spec


def draw_optimizer(rng: Random, rate: float) -> Spec:
    kind = rng.choices(("sgd", "momentum", "adamw", "adam"), (50, 15, 20, 15))[0]
    if kind in ("sgd", "momentum"):
        spec: Spec = {"name": "sgd", "lr": rate}
        if kind == "momentum":
            spec["momentum"] = 0.9
    else:
        # A large epsilon: rounding errors in gradients that are zero stay small.
        spec = {"name": kind, "lr": 0.02, "eps": 1e-3}
        if kind == "adamw" and chance(rng, 0.5):
            spec["wd"] = 0.1
    if chance(rng, 0.25):
        spec["clip"] = rng.choice((0.1, 1.0))
    if chance(rng, 0.15):
        spec["group"] = {"pattern": rng.choice(("*bias", "head.*", "*weight")), "factor": 0.5,
                         "wd": rng.choice((0.0, 0.05))}  # fmt: skip
    return spec
