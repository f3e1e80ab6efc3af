"""What several devices share: data, optimizer state, parameters, layers, sequences."""

from __future__ import annotations

from .row import Part, Row

TRAIN = "--model.name gpt-tiny --train.sample 0 --train.batch 8 --train.steps 4"

DATA_PARALLEL = Part(
    "Data parallel",
    (
        Row(
            "dp-ddp",
            "DataParallel's threads against DDP's processes",
            "communication.md#dp-against-ddp",
            "stepladder bench dp --steps 1",
            r"^DistributedDataParallel",
            lab="threads",
        ),
        Row(
            "ddp",
            "Training on two ranks under DDP",
            "rungs/ddp.md",
            f'stepladder train --ranks 2 --plan "fp32 ddp" {TRAIN}',
            r"(?i)step.*loss",
            lab="ddp",
        ),
        Row(
            "ddp-same",
            "A proof that DDP computes what one rank would",
            "sameness.md",
            'stepladder verify parity --plans "fp32 ddp replicate=2"',
            r"^plan optimizer",
            lines=2,
        ),
        Row(
            "no-sync",
            "Accumulation with DDP: gradients are sent once a batch (no_sync)",
            "rungs/accumulation.md",
            "stepladder lab run ddp-accumulation",
            r"^micro-batches step",
            lab="ddp-accumulation",
            lines=2,
        ),
        Row(
            "overlap",
            "Buckets, and communication hidden behind backward",
            "profiling.md",
            "stepladder lab run overlap",
            r"layers_each",
            lab="overlap",
            lines=4,
        ),
    ),
)

COMPRESSION = Part(
    "Compression of gradients",
    (
        Row(
            "powersgd",
            "PowerSGD: gradients as two thin matrices, with error feedback",
            "rungs/compression.md",
            "stepladder lab run powersgd",
            r"steps .*error",
            lab="powersgd",
            lines=4,
        ),
        Row(
            "compression-curves",
            "What compression costs in loss, with and without error feedback",
            "experiments.md#compressed-gradients-over-a-training",
            "stepladder bench compression-curves --seeds 1 --steps 6",
            r"^compress error",
            lab="powersgd",
            lines=4,
        ),
    ),
)

SHARDING = Part(
    "ZeRO and FSDP",
    (
        Row(
            "zero",
            "What a rank holds under DDP and ZeRO 1, 2 and 3",
            "rungs/zero.md",
            "stepladder bench zero --steps 1",
            r"^stage ",
            lab="zero",
            lines=5,
        ),
        Row(
            "fsdp",
            "Full sharding (FSDP, ZeRO 3): a model that no rank could hold",
            "rungs/zero.md",
            "stepladder lab run full-sharding",
            r"strategy .*peak",
            lab="full-sharding",
            lines=5,
        ),
        Row(
            "prefetch",
            "How many blocks are gathered ahead, and how many are whole at a time",
            "rungs/zero.md#gathering-ahead",
            'stepladder plan llama2-7b --on "8 x A100-80GB" '
            '--plan "bf16 zero3 shard=8 prefetch=2 gathered=4 micro=1"',
            r"(?i)gather|memory|GiB",
            lines=3,
        ),
        Row(
            "deepspeed",
            "ZeRO 1, 2 and 3 beside DeepSpeed's: memory, steps, losses",
            "rungs/zero.md#beside-deepspeed",
            "stepladder lab run zero",
            r"(?i)stage|zero",
            lab="zero",
            lines=4,
        ),
        Row(
            "hybrid",
            "Hybrid sharding: shards inside a node, copies across nodes",
            "interview.md#what-do-zero-1-2-and-3-divide-and-what-do-they-send",
            'stepladder plan llama3-8b --sequence 8192 --on "4 nodes x 8 H100-80GB" '
            '--plan "bf16 hsdp shard=8 replicate=4 micro=1 recompute=blocks"',
            r"tokens/s a device, MFU",
        ),
        Row(
            "zero-same",
            "A proof that ZeRO 1 and 3 compute what one rank would",
            "sameness.md",
            'stepladder verify parity --plans "fp32 zero1 shard=2; fp32 zero3 shard=2"',
            r"^plan optimizer",
            lines=2,
        ),
    ),
)

MODEL_PARALLEL = Part(
    "Tensor, pipeline and context parallel",
    (
        Row(
            "tensor-same",
            "A proof that a cut model computes the same",
            "rungs/tensor.md",
            'stepladder verify parity --plans "fp32 tensor=2"',
            r"^plan optimizer",
            lab="tensor-parallel",
            lines=2,
        ),
        Row(
            "schedules",
            "GPipe, 1F1B, interleaved, zero-bubble: idle time beside the formula",
            "pipeline.md#what-it-costs",
            "stepladder bench pipeline --steps 1",
            r"^blocks schedule",
            lab="gpipe",
            lines=6,
        ),
        Row(
            "long-sequence",
            "Sequences of 131,072 tokens on eight devices",
            "rungs/context.md#forecast-sequences-of-131072-tokens",
            'stepladder plan llama3-8b --sequence 131072 --on "8 x H100-80GB" '
            '--plan "bf16 zero3 context=8 micro=1 recompute=blocks"',
            r"^memory ",
            lab="context-parallel",
        ),
    ),
)

PARALLEL = (DATA_PARALLEL, COMPRESSION, SHARDING, MODEL_PARALLEL)
