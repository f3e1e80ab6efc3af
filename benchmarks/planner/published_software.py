"""What the notes of a published row, and the projects' own code, say of the software that ran.

The planner's default is stepladder on torch. A framework that does something else with the same
plan (fp32 gradients, masters, another attention kernel) is described here, once for each.
"""

from __future__ import annotations

import re
from dataclasses import replace

from published_rows import Row, megatron_like, precision_of_row
from stepladder.plan.precision import BYTES
from stepladder.planner.training_software import Software

# The first flash attention in Triton: 100 TFLOP/s on an A100, as FlashAttention-2 (Dao 2023)
# reports for its predecessor; on an H100 it gained no more than the doubled clock and processors.
TRITON_FLASH = {"A": 100e12, "H": 190e12}


# Peak of 4-bit products over that of 8-bit ones, dense, by the datasheets.
FOUR_BITS = {"GB300": 3.0, "B300": 3.0}
USUAL_FOUR_BITS = 2.0


def software_of_row(row: Row, device: str) -> Software:
    """What the notes and the projects' own code say of the software that ran."""
    software = framework_of_row(row, device)
    if "fp4" in row["precision"]:
        return replace(software, narrower=FOUR_BITS.get(device, USUAL_FOUR_BITS))
    return software


def framework_of_row(row: Row, device: str) -> Software:
    if "llm-foundry" in row["source"]:
        return Software(
            loss="fused",
            stops_early="torch1" not in row["notes"],  # since torch 2.0
            attention_flops_per_second=TRITON_FLASH.get(device[0]),
        )
    if "nanotron" in row["source"]:
        return Software(
            keeps_logits=True, masters=True, gradient="float32", adds_later=True, cuts="crossing",
            regathers="July-2024" not in row["notes"],  # it came later
            host_factor=4.0,
        )  # fmt: skip
    if megatron_like(row):
        return megatron_software(row, device)
    if "InternEvo" in row["source"]:
        # Its optimizer's step holds the gradients in fp32 beside bf16, and torch's update without
        # fusion the root of the second moment and what divides by it: 4 + 4 + 4 (its file
        # fsdp_optimizer.py). Without FSDP they are once more flat in bf16, and travel in buckets
        # of 512 Mi elements (hybrid_zero_optim.py, reduce_bucket_size of its configurations).
        flat = "fsdp" not in row["sharding"]
        return Software(
            keeps_logits=True, regathers=True, masters=True, cuts="even", slices_stream=False,
            update_bytes=14.0 if flat else 12.0, bucket_bytes=2.0**30 if flat else 0.0,
        )  # fmt: skip
    if re.search("torchtitan|/ao", row["source"]):
        asynchronous = re.search("async ?tp", row["notes"], re.I)
        eight = row["precision"] == "fp8" and "rowwise" not in row["notes"]  # rowwise: bf16 travels
        return Software(
            compiles_loss=True,
            keeps_logits=True,
            recomputed_matmuls=0.5,
            hides_tensor=bool(asynchronous),
            gather="float8" if eight else None,
        )
    if re.search("deepspeed|colossal", row["source"], re.I):
        return Software(masters=True, stops_early=False)
    if re.search("HF Trainer|transformers|trl", row["notes"] + row["source"], re.I):
        # Its reentrant checkpoints run a block to its end, and torch's update without fusion makes
        # a tensor for each parameter: the root of its second moment.
        return Software(
            stops_early=False,
            update_bytes=BYTES[precision_of_row(row).store],
            loss="in-place" if re.search("foak|fused.{0,30}CE", row["notes"]) else "plain",
            fuses_head=bool(re.search("fused linear CE|liger fused", row["notes"], re.I)),
            drops_gradients=True,
        )
    if "nanochat" in row["source"]:  # compiled with its loss
        third = "flash-attn 3" in row["attention_impl"] and device.startswith("H")
        return Software(
            loss="fused", compiles_loss=True, drops_gradients=True,
            attention_flops_per_second=520e12 if third else None,
        )  # fmt: skip
    return Software()


def megatron_software(row: Row, device: str) -> Software:
    """Its products add into fp32 gradients; its checkpoints run a block to its end."""
    software = Software(
        loss="in-place", regathers=True, masters=True, gradient="float32", stops_early=False,
        cuts="even", recomputes_scores="selective" in row["activation_checkpointing"],
        score_bytes=13.0,  # one kernel scales, masks and softmaxes in 16 bits; dropout; use
        adds_inside=True, scatters=True, balances=True,
    )  # fmt: skip
    if not re.search("nemo", row["source"], re.I):
        return software
    # On Transformer Engine: collectives run in pieces beside products, operands are cast by the
    # kernels that make them, with scales of steps before, and attention is cuDNN's, which on a
    # Hopper does 520 TFLOP/s forward and backward (FlashAttention-3, Shah 2024).
    return replace(
        software, gradient=None, hides_tensor=True, hides_context=True, cast_bytes=3.0,
        casts_once=True, attention_flops_per_second=cudnn_attention(row, device),
    )  # fmt: skip


def cudnn_attention(row: Row, device: str) -> float | None:
    """Attention of cuDNN 9, which NeMo has from 24.05 on.

    On a Hopper as FlashAttention-3's authors measured (Shah 2024); on Blackwells as whole steps of
    long sequences leave for it, no more closely known: Blackwell Ultra's exponentials are twice as
    fast, which is what bounds it there.
    """
    if "24.03" in row["notes"]:
        return None
    if device.startswith("H"):
        return 520e12
    if device.startswith(("B300", "GB300")):
        return 950e12
    return 750e12 if device.startswith(("B", "GB2")) else None
