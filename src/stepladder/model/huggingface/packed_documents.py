"""Packed documents for Hugging Face models: no token sees another document than its own.

Their models take `position_ids`, and a mask of (batch, 1, length, length) as it stands: booleans
where torch's fused attention is used, numbers to add where scores are written out ("eager"). A
boolean mask would be added there as ones and hide nothing, so which it is is asked of the model.
Such a mask stands in the place of all of theirs: the window of a model that looks back only so far
has to be in it, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.builtin.attention import document_mask

SLIDING = "sliding_attention"  # their name for blocks that look back only so far
NAMES = {"tokens": "input_ids", "positions": "position_ids"}  # ours: theirs


def read_documents(module: nn.Module) -> nn.Module:
    """The same module, which from now on also takes `tokens`, `documents` and `positions`."""
    _check(_attention(module), module)
    module.register_forward_pre_hook(_translate, with_kwargs=True)
    return module


def their_inputs(module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of packed rows under the names, and with the mask, that the module knows."""
    found = {NAMES.get(name, name): value for name, value in inputs.items() if name != "documents"}
    if "documents" not in inputs:
        return found
    kind = _attention(module)
    _check(kind, module)
    mask = document_mask(inputs["documents"])
    if window := _window(module, mask.shape[-1]):
        mask = mask.triu(1 - window)
    if kind == "eager":
        # The smallest number, not -inf: what they compute with it must stay finite.
        dtype = next(module.parameters()).dtype
        hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        mask = hidden.masked_fill(~mask, torch.finfo(dtype).min)
    return {**found, "attention_mask": mask}


def _translate(
    module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, their_inputs(module, inputs) if "tokens" in inputs else inputs


def _window(module: nn.Module, length: int) -> int:
    """How many tokens a block looks back on, itself included; 0: on all that there are."""
    config = getattr(module, "config", None)
    size = getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)
    blocks = set(getattr(config, "layer_types", None) or [SLIDING])
    if not size or length <= size or blocks == {"full_attention"}:
        return 0
    if blocks != {SLIDING}:
        raise ModelError(
            type(module).__name__,
            f"has blocks that look back on {size} tokens beside others, and packed rows of "
            f"{length} have one mask for all",
            f"Use model.sequence={size} or less, or rows that are not packed.",
        )
    return int(size)


def _attention(module: nn.Module) -> str:
    """The way a Hugging Face model attends, by the name they give it."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "none"))


def _check(kind: str, module: nn.Module) -> None:
    if kind not in ("sdpa", "eager"):
        raise ModelError(
            type(module).__name__,
            f"attends by '{kind}', which takes no mask of documents",
            "Build it with attn_implementation='sdpa'.",
        )
