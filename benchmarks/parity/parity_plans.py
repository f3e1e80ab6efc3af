"""The plans of the parity table, by model: every rung, every pair of axes, three precisions."""

from __future__ import annotations

from pathlib import Path

from parity_models import SAMPLES
from stepladder.train.user_code.user_code import UserCode

FOREIGN = Path(__file__).with_name("parity_models.py")


def foreign(name: str) -> UserCode:
    """A model of that file on the samples it reads."""
    return UserCode(f"{FOREIGN}:{name}", data=f"{FOREIGN}:{SAMPLES.get(name, 'data')}")


MODELS: dict[str, UserCode | str] = {
    "gpt": "gpt:layers=4,hidden=32,heads=4,vocab=64",
    "llama": "llama:layers=4,hidden=32,heads=4,kv_heads=2,vocab=64",
    "mixtral": "llama:layers=4,hidden=32,heads=4,kv_heads=2,vocab=64,ffn=32,experts=8,active=2",
    "olmoe": "llama:layers=4,hidden=32,heads=4,vocab=64,ffn=16,experts=16,active=4,raw=1,extra=64",
    "qwen3-moe": (
        "llama:layers=4,hidden=32,heads=4,kv_heads=2,vocab=64,ffn=64,head=16,experts=16,active=4,"
        "expert_ffn=16,shared_ffn=16,extra=32"
    ),
    "wide": "llama:layers=4,hidden=8,heads=2,vocab=32776",  # its head is fused
    "mlp": "mlp-tiny",
    "resnet": "resnet-tiny",
    "odd": foreign("Odd"),
    "residual": foreign("ResidualOutside"),
    "skips": foreign("SkipConnections"),
    "encoder": foreign("TorchEncoder"),
    "translator": foreign("TorchTransformer"),
    "sequential": foreign("sequential"),
    "listed-experts": foreign("ListedExperts"),
    **{
        name: foreign(name.replace("-", "_"))
        for name in (
            *("hf-gpt2", "hf-llama"),
            *("hf-mistral", "hf-qwen2", "hf-gemma", "hf-opt", "hf-neox", "hf-phi3"),
            *("hf-vit", "hf-resnet"),
            *("hf-mixtral", "hf-qwen3-moe", "hf-deepseek-v3"),
            *("lora-llama", "lora-gpt2", "hf-wide"),
        )
    },
}

DATA = """
gpt       fp32 ddp replicate=2
gpt       fp32 zero1 shard=2
gpt       fp32 zero2 shard=2
gpt       fp32 zero3 shard=2
gpt       fp32 ddp replicate=8
gpt       fp32 zero1 shard=8
gpt       fp32 zero3 shard=8
gpt       fp32 zero3 shard=2 recompute=blocks
gpt       fp32 ddp replicate=2 micro=1 accumulate=5
gpt       fp32 ddp replicate=2 attention=plain
gpt       fp32 ddp replicate=2 compress=bf16
gpt       fp32 ddp replicate=2 compress=fp16
gpt       fp32 ddp replicate=2 exact=ranks
gpt       fp32 zero1 shard=4 exact=ranks
gpt       bf16 zero2 shard=2 exact=ranks
gpt       fp32 zero3 shard=4 exact=ranks
gpt       bf16 ddp replicate=2
gpt       bf16 zero3 shard=2 recompute=blocks
gpt       fp16 ddp replicate=2
gpt       fp16 zero2 shard=2
llama     fp32 ddp replicate=4
llama     fp32 zero1 shard=2 replicate=2
llama     fp32 zero2 shard=4
llama     fp32 zero2 shard=2 replicate=2
llama     fp32 hsdp shard=2 replicate=2
llama     fp32 hsdp shard=4 replicate=2
llama     fp32 zero3 shard=4 recompute=every:2
llama     fp32 zero3 shard=2 offload=activations
llama     fp32 zero3 shard=2 offload=optimizer
llama     fp32 zero3 shard=2 offload=parameters
llama     bf16 zero2 shard=2
llama     bf16 hsdp shard=2 replicate=2
llama     fp16 zero3 shard=4
mlp       fp32 ddp replicate=2
mlp       fp32 zero1 shard=4
mlp       fp32 zero2 shard=4
mlp       fp32 zero3 shard=8
mlp       bf16 zero3 shard=2
resnet    fp32 ddp replicate=2
resnet    fp32 zero1 shard=2
resnet    fp32 zero2 shard=2
resnet    fp32 zero3 shard=4
hf-gpt2   fp32 ddp replicate=2
hf-gpt2   fp32 zero1 shard=2
hf-gpt2   fp32 zero3 shard=2
hf-gpt2   bf16 zero3 shard=2
hf-llama  fp32 ddp replicate=2
hf-llama  fp32 zero2 shard=4
hf-llama  fp32 zero3 shard=4
hf-llama  fp32 zero3 shard=2 recompute=blocks
odd       fp32 ddp replicate=2
odd       fp32 zero1 shard=2
odd       fp32 zero2 shard=4
odd       fp32 zero3 shard=4
odd       bf16 zero3 shard=2
"""

AXES = """
gpt       fp32 tensor=2
gpt       fp32 pipeline=2
gpt       fp32 context=2
gpt       fp32 ddp replicate=2 tensor=2
gpt       fp32 pipeline=4 schedule=gpipe
gpt       fp32 zero1 pipeline=2 shard=2
gpt       bf16 tensor=2 recompute=blocks
gpt       bf16 pipeline=2
llama     fp32 tensor=2
llama     fp32 tensor=2 recompute=blocks
llama     fp32 zero1 shard=2 tensor=2
llama     fp32 zero2 shard=2 tensor=2
llama     fp32 zero3 shard=2 tensor=2
llama     fp32 zero3 shard=4 tensor=2
llama     fp32 pipeline=2 schedule=gpipe
llama     fp32 pipeline=2 schedule=1f1b
llama     fp32 pipeline=2 schedule=interleaved:2
llama     fp32 pipeline=2 schedule=zero-bubble
llama     fp32 zero2 pipeline=2 shard=2 micro=1
llama     fp32 zero3 pipeline=2 shard=2
llama     fp32 pipeline=2 tensor=2
llama     fp32 zero3 pipeline=2 shard=2 tensor=2
llama     fp32 context=2
llama     fp32 context=4
llama     fp32 zero3 context=2 shard=2
llama     fp32 context=2 tensor=2
llama     fp32 pipeline=2 context=2
llama     fp32 zero3 pipeline=2 context=2 micro=1
llama     fp32 pipeline=2 context=2 tensor=2
llama     bf16 pipeline=2 context=2
hf-llama  fp32 pipeline=2 context=2
llama     bf16 zero3 shard=2 tensor=2
llama     bf16 context=2
llama     fp16 tensor=2
mlp       fp32 tensor=2
mlp       fp32 pipeline=2
resnet    fp32 pipeline=2
hf-gpt2   fp32 tensor=2
hf-gpt2   fp32 pipeline=2
hf-llama  fp32 tensor=2
hf-llama  fp32 zero3 shard=2 tensor=2
hf-llama  fp32 pipeline=2
"""

OTHERS = """
hf-mistral  fp32 zero3 shard=2
hf-mistral  fp32 tensor=2
hf-mistral  fp32 pipeline=2
hf-qwen2    fp32 ddp replicate=2
hf-qwen2    fp32 tensor=2
hf-qwen2    fp32 zero3 shard=2 tensor=2
hf-gemma    fp32 zero2 shard=2
hf-gemma    fp32 tensor=2
hf-gemma    fp32 pipeline=2
hf-opt      fp32 zero3 shard=2
hf-opt      fp32 tensor=2
hf-neox     fp32 zero3 shard=2
hf-neox     fp32 tensor=2
hf-neox     fp32 pipeline=2
hf-phi3     fp32 zero3 shard=2
hf-phi3     fp32 pipeline=2
hf-vit      fp32 ddp replicate=2
hf-vit      fp32 zero3 shard=2
hf-vit      fp32 tensor=2
hf-vit      fp32 pipeline=2
hf-resnet   fp32 ddp replicate=2
hf-resnet   fp32 zero3 shard=2
lora-llama  fp32 ddp replicate=2
lora-llama  fp32 zero1 shard=2
lora-llama  fp32 zero2 shard=2
lora-llama  fp32 zero3 shard=2
lora-llama  fp32 zero3 shard=2 recompute=blocks
lora-llama  bf16 zero3 shard=2
lora-llama  fp32 tensor=2
lora-llama  fp32 zero3 shard=2 tensor=2
lora-llama  fp32 pipeline=2
lora-llama  fp32 zero3 pipeline=2 shard=2
lora-gpt2   fp32 ddp replicate=2
lora-gpt2   fp32 zero3 shard=2
lora-gpt2   fp32 tensor=2
lora-gpt2   fp32 pipeline=2
lora-gpt2   fp32 context=2
"""

EXPERTS = """
mixtral    fp32 ddp replicate=2
mixtral    fp32 zero3 shard=2 micro=1
mixtral    fp32 experts=2
mixtral    fp32 experts=4
mixtral    fp32 experts=8
mixtral    fp32 experts=2 micro=1 accumulate=4
mixtral    fp32 experts=2 recompute=blocks
mixtral    fp32 ddp replicate=2 experts=2
mixtral    fp32 ddp replicate=4 experts=2
mixtral    fp32 zero1 shard=1 experts=2
mixtral    fp32 zero1 shard=2 experts=2
mixtral    fp32 zero2 shard=2 experts=2
mixtral    fp32 zero3 shard=1 experts=2
mixtral    fp32 zero3 shard=2 experts=2
mixtral    fp32 zero3 shard=2 experts=4
mixtral    fp32 hsdp shard=2 replicate=2 experts=2
mixtral    fp32 experts=2 context=2
mixtral    fp32 experts=2 pipeline=2
mixtral    fp32 zero3 shard=2 experts=2 context=2
mixtral    fp32 zero3 shard=2 experts=2 pipeline=2
mixtral    fp32 experts=2 tensor=2
mixtral    fp32 zero1 shard=1 experts=2 tensor=2
mixtral    fp32 zero3 shard=2 experts=2 tensor=2
mixtral    fp32 experts=2 offload=optimizer
mixtral    bf16 zero3 shard=2 experts=2
olmoe      fp32 experts=2
olmoe      fp32 zero1 shard=2 experts=4
olmoe      fp32 zero3 shard=2 experts=2
qwen3-moe  fp32 experts=2
qwen3-moe  fp32 zero3 shard=2 experts=4
qwen3-moe  fp32 experts=2 pipeline=2
hf-mixtral      fp32 experts=2
hf-mixtral      fp32 zero3 shard=2 experts=2
hf-mixtral      fp32 experts=2 tensor=2
hf-qwen3-moe    fp32 zero1 shard=2 experts=2
hf-qwen3-moe    fp32 zero3 shard=2 experts=4
hf-deepseek-v3  fp32 experts=2
hf-deepseek-v3  fp32 zero3 shard=2 experts=2
listed-experts  fp32 experts=2
listed-experts  fp32 experts=8
listed-experts  fp32 ddp replicate=2 experts=2
listed-experts  fp32 zero1 shard=2 experts=2
listed-experts  fp32 zero2 shard=2 experts=2
listed-experts  fp32 zero3 shard=2 experts=2
listed-experts  fp32 zero3 shard=2 experts=4
"""

CHAINS = """
residual    fp32 pipeline=2 schedule=gpipe
residual    fp32 pipeline=2 schedule=1f1b
residual    fp32 pipeline=2 schedule=interleaved:2
residual    fp32 pipeline=2 schedule=zero-bubble
residual    fp32 pipeline=4
residual    fp32 zero3 pipeline=2 shard=2
residual    bf16 pipeline=2
skips       fp32 pipeline=2 schedule=gpipe
skips       fp32 pipeline=4
skips       fp32 pipeline=2 schedule=interleaved:2
encoder     fp32 pipeline=2 schedule=gpipe
encoder     fp32 pipeline=2 schedule=1f1b
encoder     fp32 pipeline=2 schedule=interleaved:2
encoder     fp32 zero3 shard=2
encoder     fp32 zero3 pipeline=2 shard=2
translator  fp32 pipeline=2 schedule=gpipe
translator  fp32 pipeline=2 schedule=interleaved:2
translator  fp32 zero3 shard=2
sequential  fp32 pipeline=2
"""


KERNELS = """
wide     fp32 ddp replicate=2 kernels=on
wide     fp32 zero1 shard=2 kernels=on
wide     fp32 zero2 shard=2 kernels=on
wide     fp32 zero3 shard=2 kernels=on
wide     fp32 zero3 shard=2 kernels=on recompute=blocks micro=1
wide     fp32 tensor=2 kernels=on
wide     fp32 pipeline=2 kernels=on
wide     fp32 context=2 kernels=on
wide     fp32 pipeline=2 kernels=on schedule=zero-bubble
wide     fp32 pipeline=2 kernels=on schedule=interleaved:2
wide     fp32 hsdp shard=2 replicate=2 kernels=on
wide     fp32 ddp replicate=2 tensor=2 kernels=on
wide     fp32 zero3 shard=2 tensor=2 kernels=on
wide     fp32 zero3 shard=2 pipeline=2 kernels=on
wide     fp32 zero3 shard=2 context=2 kernels=on
wide     fp32 pipeline=2 tensor=2 kernels=on
wide     fp32 context=2 tensor=2 kernels=on
wide     fp32 pipeline=2 context=2 kernels=on
wide     fp32 ddp replicate=2 kernels=on micro=1
wide     fp32 zero3 shard=2 pipeline=2 tensor=2 kernels=on
wide     bf16 zero3 shard=2 kernels=on
wide     bf16 tensor=2 kernels=on
wide     fp16 zero3 shard=2 tensor=2 kernels=on
hf-wide  fp32 zero3 shard=2 kernels=on
hf-wide  fp32 tensor=2 kernels=on
hf-wide  fp32 pipeline=2 kernels=on
hf-wide  fp32 context=2 kernels=on
hf-wide  fp32 zero3 shard=2 tensor=2 kernels=on
"""


def every_plan() -> list[tuple[str, str]]:
    """(model, plan) of each row."""
    lines = [
        line for line in (DATA + AXES + OTHERS + EXPERTS + CHAINS + KERNELS).splitlines() if line
    ]
    pairs = [line.split(maxsplit=1) for line in lines]
    return [(model, plan) for model, plan in pairs]
