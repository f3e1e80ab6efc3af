"""The modules of other projects and the plans whose memory is forecast and measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))

PLANS = ("bf16", "bf16 recompute=blocks", "fp32", "bf16-master")
OPTIMIZER = "adamw lr=1e-4 clip=1"
GIB_AT_MOST = {  # of a module's plans, where it is more than the usual
    "gpt2": 32, "llama": 58, "resnet50": 28, "bert": 22, "t5": 24, "qwen2": 48, "mistral": 58,
    "gemma2": 48, "opt": 34, "hand_gpt": 34, "swin": 34, "convnext": 34, "efficientnet_v2": 34,
    "modernbert": 30, "dit": 26,
}  # fmt: skip
USUAL_GIB = 20
NAMES = (  # the most telling first
    "t5", "bert", "unet", "gpt2", "lstm", "two_towers", "convnext", "modernbert", "qwen2", "swin",
    "hand_gpt", "opt", "efficientnet_v2", "mixer", "dit", "gemma2", "vit_b_16", "resnet50",
    "encoder_of_lengths", "vit", "mistral", "llama",
)  # fmt: skip


def case_of(name: str) -> Any:
    import torch

    from real_sizes import CASES

    torch.manual_seed(0)
    case = CASES[name]()
    if name == "t5":  # versions of transformers differ in what they attend with
        case.module.set_attn_implementation("eager")
    return case


def load_libraries() -> None:
    """Import what the cases need, once, before processes are forked."""
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM  # noqa: F401

    import real_sizes  # noqa: F401

    for kind in ("gpt2", "bert", "t5", "llama", "qwen2", "mistral", "gemma2", "opt", "vit"):
        AutoConfig.for_model(kind)
    assert transformers.__version__
