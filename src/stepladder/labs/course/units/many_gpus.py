"""The third part: many GPUs, from data parallel to a cut model."""

from __future__ import annotations

from stepladder.labs.course import figures
from stepladder.labs.course.unit import CoursePart, Exercise, Question, Trap, Unit

EIGHT = "8 x A100-80GB"
LARGE_SHARDED = "bf16 zero3 shard=128 batch=256 micro=2 recompute=blocks"
LARGE_STAGED = (
    "bf16 zero1 pipeline=8 shard=2 tensor=8 batch=256 micro=1 recompute=selective"
)  # fmt: skip

DATA_PARALLEL = Unit(
    "data-parallel",
    "Data parallel",
    "Make several ranks compute what one would, and say what they send.",
    hours=8,
    exercises=(
        Exercise("Start ranks yourself: a script for torchrun", "torchrun", page="launchers.md"),
        Exercise(
            "DDP from scratch",
            "ddp",
            'stepladder train --ranks 2 --plan "fp32 ddp" --train.steps 20 --train.sample 0',
            "rungs/ddp.md",
        ),
        Exercise(
            "Prove that it computes the same",
            command='stepladder verify parity --plans "fp32 ddp replicate=2"',
            page="sameness.md",
        ),
        Exercise("Accumulation with DDP and its convergence", "ddp-accumulation",
                 page="rungs/accumulation.md"),
        Exercise("Scale the learning rate with the batch", "learning-rate",
                 "stepladder bench learning-rate --steps 16", "experiments.md"),
        Exercise(
            "Find the bottleneck and hide communication behind backward",
            "overlap",
            "stepladder profile --ranks 2 --steps 2",
            "profiling.md",
        ),
        Exercise("Collectives on this machine",
                 command="stepladder bench collectives --largest 1024",
                 page="communication.md"),
        Exercise("Ring all-reduce from scratch", "ring", "stepladder bench ring --largest 1024",
                 "communication.md", bonus=True),
        Exercise("Several GPUs in one process, and why not", "threads",
                 "stepladder bench dp --steps 2", bonus=True),
        Exercise("PowerSGD: gradients as two thin matrices", "powersgd",
                 page="rungs/compression.md", bonus=True),
    ),
    takeaways=(
        "A mean over ranks of means over equal shares is the mean over the batch.",
        "An all-reduce sends just under twice the message, whatever the number of ranks.",
        "Communication that runs beside backward costs nothing until it is longer.",
    ),
    checklist=(
        Question(
            "ring",
            "How many MB does each of 8 ranks send in a ring all-reduce of 100 MB?",
            lambda: figures.ring(8).all_reduce(100.0),
            unit="MB",
            traps=(
                Trap(lambda: figures.ring(8).gather(100.0), "That is reduce-scatter alone"),
                Trap(lambda: 100.0 * 7, "A ring does not send the whole message to everyone"),
            ),
        ),
        Question(
            "accumulate",
            "'ddp micro=4 batch=512' on 16 ranks: how many micro-batches does each make a step?",
            lambda: figures.micro_batches("bf16 ddp micro=4 batch=512", 16),
            within=0,
            traps=(Trap(lambda: 512 // 4, "That is the micro-batches of all ranks together"),),
        ),
        Question(
            "divides",
            "'ddp micro=4 batch=100' on 8 ranks is refused. What is the next larger batch that "
            "is not?",
            lambda: figures.smallest(
                lambda batch: figures.settles(f"bf16 ddp micro=4 batch={batch}", 8),
                range(100, 400),
            ),
            within=0,
            traps=(Trap(lambda: 104, "It divides by the ranks, but not into micro-batches of 4"),),
            shown_by='stepladder plan gpt2 --on "8 x A100-80GB" --plan "bf16 ddp micro=4 '
            'batch=100"',
        ),
        Question(
            "rate",
            "A batch of 256 trained with SGD at lr 0.1. What rate does linear scaling give for "
            "2,048?",
            lambda: figures.scaled_rate(0.1, 2048, 256, "linear"),
            traps=(
                Trap(
                    lambda: figures.scaled_rate(0.1, 2048, 256, "sqrt"),
                    "That is square-root scaling, for Adam",
                ),
            ),
        ),
    ),
)  # fmt: skip

SHARDING = Unit(
    "sharding",
    "ZeRO and full sharding",
    "Divide optimizer state, gradients and parameters, and know what that sends and saves.",
    hours=6,
    exercises=(
        Exercise(
            "ZeRO by hand, and against DeepSpeed where it is installed",
            "zero",
            "stepladder bench zero --steps 2",
            "rungs/zero.md",
        ),
        Exercise(
            "Full sharding: a model no rank could hold",
            "full-sharding",
            'stepladder train --ranks 2 --plan "fp32 zero3 shard=2" --train.steps 20 '
            "--train.sample 0",
            "rungs/zero.md",
        ),
        Exercise("Mixed precision with sharding", "sharded-precision", page="rungs/precision.md"),
        Exercise(
            "Prove that it computes the same",
            command='stepladder verify parity --plans "fp32 zero1 shard=2; fp32 zero3 shard=2"',
            page="sameness.md",
        ),
    ),
    takeaways=(
        "On N ranks ZeRO 1 keeps 8 + 8/N bytes a parameter, ZeRO 2 4 + 12/N, ZeRO 3 16/N. "
        "FSDP2's ZeRO 2, and so stepladder's, divides parameters too, from one step to the next.",
        "ZeRO 3 sends half as much again as DDP: parameters are gathered twice.",
        "The memory that sharding frees may hold a larger micro-batch, which is faster.",
    ),
    checklist=(
        Question(
            "zero1",
            "How many bytes a parameter does a rank keep under ZeRO 1 on 8 ranks, in bf16 mixed "
            "precision with AdamW, gradients counted, if parameters and gradients are kept in "
            "float32?",
            lambda: figures.state_per_parameter("llama2-7b", "bf16 zero1 micro=1", EIGHT),
            traps=(
                Trap(
                    lambda: figures.state_per_parameter("llama2-7b", "bf16 zero3 micro=1", EIGHT),
                    "That is ZeRO 3",
                ),
                Trap(
                    lambda: figures.state_per_parameter("llama2-7b", "bf16 ddp micro=1", EIGHT),
                    "That is DDP: ZeRO 1 divides the optimizer's state",
                ),
                Trap(
                    lambda: 2 + 2 + 12 / 8,
                    "That is the ZeRO paper's count, of parameters and gradients in 16 bits and "
                    "divided float32 weights",
                ),
            ),
        ),
        Question(
            "traffic",
            "How many times DDP's traffic does ZeRO 3 send in a step, with gathers and gradients "
            "of the same width?",
            lambda: 3 * figures.ring(8).gather(1.0) / figures.ring(8).all_reduce(1.0),
            traps=(
                Trap(lambda: 1, "It gathers parameters once more, in backward"),
                Trap(lambda: 3, "An all-reduce is as much as two gathers"),
            ),
        ),
        Question(
            "fewest",
            "On how many A100-80GB, at least, does Llama 2 7B fit with 'bf16 zero3 micro=1', by "
            "the planner?",
            lambda: figures.smallest(
                lambda count: figures.told(
                    "llama2-7b", "bf16 zero3 micro=1", f"{count} x A100-80GB"
                ).fits,
                range(1, 9),
            ),
            within=0,
            traps=(Trap(lambda: 1, "Its weights fit one, its state does not"),),
            shown_by='stepladder plan llama2-7b --on "2 x A100-80GB" --plan "bf16 zero3 micro=1"',
        ),
        Question(
            "slices",
            "And how many GiB of state does each of 8 keep then?",
            lambda: figures.told("llama2-7b", "bf16 zero3 micro=1", EIGHT).memory.state_bytes
            / figures.GIB,
            unit="GiB",
            traps=(
                Trap(
                    lambda: figures.told("llama2-7b", "bf16 zero3 micro=1", EIGHT)
                    .memory.state_bytes / 1e9,
                    "That is in GB: a GiB is 2^30 bytes",
                ),
            ),
        ),
    ),
)  # fmt: skip

MODEL_PARALLEL = Unit(
    "model-parallel",
    "Tensor, pipeline and context parallel",
    "Cut a layer, a stack of layers or a sequence, and choose which by links and memory.",
    hours=10,
    exercises=(
        Exercise(
            "Tensor parallel by hand",
            "tensor-parallel",
            'stepladder verify parity --plans "fp32 tensor=2"',
            "rungs/tensor.md",
        ),
        Exercise(
            "Pipeline parallelism as GPipe does it",
            "gpipe",
            "stepladder bench pipeline --steps 2",
            "pipeline.md",
        ),
        Exercise(
            "Attention over a cut sequence",
            "context-parallel",
            'stepladder verify parity --plans "fp32 context=2"',
            "rungs/context.md",
            bonus=True,
        ),
        Exercise("Pipeline or data parallel, at equal devices", "pipeline-bubble",
                 page="pipeline.md"),
        Exercise("Route tokens to experts on several ranks", "expert-routing", page="planner.md",
                 bonus=True),
    ),
    takeaways=(
        "Tensor parallel talks in every layer: keep it inside a node.",
        "A pipeline's bubble is (p - 1)/(m + p - 1): more micro-batches shrink it.",
        "Shard first; cut the model where the batch or the memory leaves no choice.",
    ),
    checklist=(
        Question(
            "bubble",
            "Which percentage of a step do ranks wait under 1F1B with 4 stages and 8 "
            "micro-batches?",
            lambda: 100 * figures.idle_share("1f1b", 4, 8),
            unit="%",
            traps=(
                Trap(lambda: 100 * 3 / 8, "That is idle over useful, not over the whole step"),
                Trap(lambda: 100 / 4, "One stage of four is not what waits"),
            ),
            shown_by="stepladder bench pipeline --steps 2",
        ),
        Question(
            "interleaved",
            "And with two chunks a rank (schedule=interleaved:2)?",
            lambda: 100 * figures.idle_share("interleaved:2", 4, 8),
            unit="%",
            traps=(
                Trap(
                    lambda: 100 * figures.idle_share("1f1b", 4, 8) / 2,
                    "The idle time is halved, and so is part of the step it is divided by",
                ),
            ),
        ),
        Question(
            "ways",
            "In how many ways, at most, may tensor parallelism cut Llama 3 8B?",
            lambda: figures.most_tensor_ways("llama3-8b"),
            within=0,
            traps=(Trap(lambda: 32, "It has 32 heads, and fewer key-value heads"),),
            shown_by='stepladder plan llama3-8b --on "32 x H100-80GB" --plan "bf16 tensor=32 '
            'micro=1"',
        ),
        Question(
            "slow",
            "Llama 3 70B on 16 nodes x 8 H100-80GB with 100 Gb/s between nodes: which is faster "
            "by the planner, "
            f"'{LARGE_SHARDED}' (sharded) or '{LARGE_STAGED}' (staged)?",
            lambda: figures.fastest(
                {
                    "sharded": figures.told("llama3-70b", LARGE_SHARDED, figures.SLOW_NETWORK),
                    "staged": figures.told("llama3-70b", LARGE_STAGED, figures.SLOW_NETWORK),
                }
            ),
            choices=("sharded", "staged"),
            traps=(Trap(lambda: "sharded", "That is so at 3,200 Gb/s"),),
            shown_by=f'stepladder plan llama3-70b --on "{figures.SLOW_NETWORK}" --plan '
            f'"{LARGE_STAGED}"',
        ),
    ),
)  # fmt: skip

MANY_GPUS = CoursePart("Many GPUs", (DATA_PARALLEL, SHARDING, MODEL_PARALLEL))
