"""Packed documents for Hugging Face models: no token attends to another document than its own.

The models take `position_ids` and a mask of (batch, 1, length, length): boolean for torch's fused
attention ("sdpa"), and numbers to add to the scores for "eager" attention. A boolean mask would be
added there as ones and hide nothing, so the kind depends on the model's setting. The mask replaces
all of the model's own, so it must include the window of sliding-window attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.builtin.attention import document_mask
from stepladder.seam.modules import pre_hooks

SLIDING = "sliding_attention"  # in `layer_types` of a config
NAMES = {"tokens": "input_ids", "positions": "position_ids"}  # ours: Hugging Face's


def accept_packed_documents(module: nn.Module) -> nn.Module:
    """Make the module accept `tokens`, `documents` and `positions` as well."""
    _check(_attention(module), module)
    module.register_forward_pre_hook(_translate, with_kwargs=True)
    return module


def accepts_packed_documents(module: nn.Module) -> bool:
    return _translate in pre_hooks(module)


def huggingface_inputs(module: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of packed rows under Hugging Face's names, with an attention mask."""
    found = {NAMES.get(name, name): value for name, value in inputs.items() if name != "documents"}
    if "documents" not in inputs:
        return found
    kind = _attention(module)
    _check(kind, module)
    mask = document_mask(inputs["documents"])
    if window := _window(module, mask.shape[-1]):
        mask = mask.triu(1 - window)
    if kind == "eager":
        # The smallest number rather than -inf, because a row of -inf would give NaN.
        dtype = next(module.parameters()).dtype
        hidden = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        mask = hidden.masked_fill(~mask, torch.finfo(dtype).min)
    return {**found, "attention_mask": mask}


def _translate(
    module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, huggingface_inputs(module, inputs) if "tokens" in inputs else inputs


def _window(module: nn.Module, length: int) -> int:
    """The size of the sliding attention window, the token itself included; 0: unlimited."""
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
    """The name of a Hugging Face model's attention implementation."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "none"))


def _check(kind: str, module: nn.Module) -> None:
    if kind not in ("sdpa", "eager"):
        raise ModelError(
            type(module).__name__,
            f"attends by '{kind}', which takes no mask of documents",
            "Build it with attn_implementation='sdpa'.",
        )
