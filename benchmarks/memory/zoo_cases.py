"""The modules of other projects and the plans whose memory is forecast and measured."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))

PLANS = ("bf16", "bf16 recompute=blocks", "fp32", "bf16-master")
COMPILED = ("bf16 compile=whole", "bf16 compile=whole kernels=on")
OPTIMIZER = "adamw lr=1e-4 clip=1"
GIB_AT_MOST = {  # of a module's plans, where it is more than the usual
    "llama": 30, "resnet50": 28, "bert": 20, "t5": 24, "qwen2": 26, "mistral": 30, "gemma2": 26,
    "opt": 20, "hand_gpt": 20, "swin": 34, "convnext": 34, "efficientnet_v2": 34,
    "modernbert": 30, "gpt2": 20, "vit": 18, "vit_b_16": 20, "dit": 16, "mixer": 17, "clip": 16,
    "densenet": 16, "maxvit": 16,
}  # fmt: skip
USUAL_GIB = 10
ROWS = {  # of a batch, where it is cut so that several modules fit beside each other
    "gpt2": 8, "llama": 4, "qwen2": 2, "mistral": 4, "gemma2": 4, "opt": 8, "hand_gpt": 8,
}  # fmt: skip
NAMES = (  # the most telling first
    "unet", "t5", "wavenet", "volume_unet", "lstm", "gru_translator", "encoder_of_lengths",
    "resnet50", "convnext", "efficientnet_v2", "vit_b_16", "regnet", "densenet", "maxvit",
    "whisper", "wav2vec2", "clip", "graph_net", "deep_fm", "two_towers", "swin", "qwen2",
    "modernbert", "gemma2", "mobilenet", "hand_gpt", "opt", "mistral", "llama", "bert", "gpt2",
    "mixer", "dit", "vit",
)  # fmt: skip
NAMES_COMPILED = (
    "gpt2", "unet", "hand_gpt", "dit", "mixer", "bert", "resnet50", "convnext", "lstm",
    "two_towers", "vit", "wavenet", "t5", "llama", "clip", "deep_fm", "graph_net", "whisper",
)  # fmt: skip
SUFFIX = "+compiled"


def job_of(job: str) -> tuple[str, tuple[str, ...]]:
    """The module of a job, and the plans that it tries."""
    name = job.removesuffix(SUFFIX)
    return name, PLANS if name == job else COMPILED


def gib_of(job: str) -> int:
    return GIB_AT_MOST.get(job_of(job)[0], USUAL_GIB)


def case_of(name: str) -> Any:
    import torch

    from more_modules import MORE
    from real_sizes import CASES

    torch.manual_seed(0)
    case = {**CASES, **MORE}[name]()
    if name == "t5":  # versions of transformers differ in what they attend with
        case.module.set_attn_implementation("eager")
    return replace(case, batch=cut(case.batch, ROWS[name])) if name in ROWS else case


def cut(batch: Any, rows: int) -> Any:
    """The first rows of a batch."""
    if isinstance(batch, dict):
        return {name: one[:rows].clone() for name, one in batch.items()}
    return tuple(one[:rows].clone() for one in batch)


def load_libraries() -> None:
    """Import what the cases need, once, before processes are forked."""
    import transformers
    from transformers import (  # noqa: F401
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
    )

    import more_modules  # noqa: F401

    for kind in ("gpt2", "bert", "t5", "llama", "qwen2", "mistral", "gemma2", "opt", "vit"):
        AutoConfig.for_model(kind)
    assert transformers.__version__
