"""Building a model by name: `gpt2`, `llama:layers=4,hidden=256`, `vit-base`, or a folder.

A model is first built on the meta device, where 405 billion parameters take no memory, and its
values are made on the device it will use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature

import torch
from torch import nn

from stepladder.errors import PlanError, nearest, require_count, require_type
from stepladder.model.builtin.gpt import GPT
from stepladder.model.builtin.initialise import initialise
from stepladder.model.builtin.llama import Llama
from stepladder.model.builtin.mlp import MLP
from stepladder.model.builtin.resnet import ResNet
from stepladder.model.builtin.vit import ViT
from stepladder.model.huggingface.pretrained import build_pretrained, is_pretrained_path
from stepladder.model.huggingface.tensor_names import refuse_unsupported_shape
from stepladder.workload import Shape, find_shape
from stepladder.workload.presets import PRESETS

ModelFactory = Callable[..., nn.Module]
FAMILIES: dict[str, ModelFactory] = {"gpt": GPT, "llama": Llama}
OTHER_MODELS: dict[str, ModelFactory] = {
    "mlp-tiny": partial(MLP),
    "resnet-tiny": partial(ResNet, depths=(1, 1, 1), width=16, small=True, channels=1, classes=10),
    "resnet18": partial(ResNet),
    "resnet50": partial(ResNet, depths=(3, 4, 6, 3), bottleneck=True),
    "vit-tiny": partial(ViT),
    "vit-small": partial(ViT, hidden=384, heads=6),
    "vit-base": partial(ViT, hidden=768, heads=12),
}


def build(
    model: str | Shape,
    *,
    device: str | torch.device | None = None,
    seed: int = 0,
    sequence: int | None = None,
    dropout: float = 0.0,
    weights: str = "",
    **options: object,
) -> nn.Module:
    """Build the named model on a device with initial values; on "meta" without any.

    A folder with a config.json is a Hugging Face model; `weights` is the folder it starts from.

    >>> import stepladder as sl
    >>> type(sl.build("gpt-tiny", sequence=32)).__name__
    'GPT'
    """
    check_numbers(model, seed, sequence, dropout)
    if isinstance(model, str) and is_pretrained_path(model) and not options:
        return build_pretrained(
            model, weights=weights, device=device, seed=seed, sequence=sequence, dropout=dropout
        )
    if weights:
        problem = f"'{weights}' is for a model that is a folder, and '{model}' is none"
        remedy = "Name that folder as the model, or start from a checkpoint made by convert."
        raise PlanError("model.weights", problem, remedy)
    maker = model_factory(model, sequence)
    if dropout:  # passed only if nonzero, so that models without dropout need no such option
        options["dropout"] = dropout
    check_options(maker, options)
    with torch.device("meta"):
        module = maker(**options)
    home = read_device(device)
    if home.type != "meta":
        check_size(module)
        module.to_empty(device=home)
        initialise(module, seed)
    return module


def check_numbers(model: object, seed: object, sequence: object, dropout: object) -> None:
    """Refuse what torch would refuse later, or take without a word."""
    require_type("model", model, (str, Shape), "Name one, such as 'gpt2', or give a Shape.")
    require_count("seed", seed, "a seed", least=0)
    if sequence is not None:
        require_count("model.sequence", sequence, "a length")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        problem = f"{dropout!r} is not a share of the activations"
        raise PlanError("model.dropout", problem, "Use 0 or more and under 1.")


def read_device(device: str | torch.device | None) -> torch.device:
    """The device that was named; None: torch's own choice."""
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as unknown:
        problem = f"{device!r} is not a device"
        raise PlanError("device", problem, "Use 'cpu', 'cuda', 'cuda:1' or 'meta'.") from unknown


def check_size(module: nn.Module) -> None:
    """Refuse a model whose values this machine's memory cannot hold: it would be filled first."""
    largest = max((p.nbytes for p in module.parameters()), default=0)  # drawn on the host
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if largest > host:
        raise PlanError(
            "model",
            f"one of its parameters has {largest / 2**30:,.0f} GiB, and this machine has "
            f"{host / 2**30:,.0f} GiB of memory",
            "Use a shorter sequence or a smaller vocabulary.",
        )


def model_factory(model: str | Shape, sequence: int | None) -> ModelFactory:
    if isinstance(model, str) and model in OTHER_MODELS:
        if sequence is not None:
            raise PlanError("model.sequence", f"{model} reads no sequence", "Leave it out.")
        return OTHER_MODELS[model]
    shape = model if isinstance(model, Shape) else named_shape(model)
    refuse_unsupported_shape(shape)
    if shape.head and not shape.gated:
        problem = f"{shape.head} a head is not hidden over heads, as in every built-in GPT"
        raise PlanError("model.head", problem, "Train the folder of the model that has such heads.")
    if sequence is not None:
        shape = replace(shape, sequence=sequence)
    return partial(FAMILIES[shape.family], shape)


def named_shape(text: str) -> Shape:
    if text in PRESETS or ":" in text:
        return find_shape(text)
    raise PlanError(
        "model", f"'{text}' is not a known model", nearest(text, [*PRESETS, *OTHER_MODELS])
    )


def check_options(maker: ModelFactory, options: dict[str, object]) -> None:
    known = [name for name in signature(maker).parameters if name != "shape"]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise PlanError(
            f"model.{unknown[0]}",
            f"is not an option of {maker.func.__name__}",  # type: ignore[attr-defined]
            nearest(unknown[0], known),
        )
