"""The second part: number formats, and where a step's memory goes."""

from __future__ import annotations

from stepladder.labs.course import figures
from stepladder.labs.course.unit import CoursePart, Exercise, Question, Trap, Unit

A100, EIGHT = "1 A100-80GB", "8 x A100-80GB"
PRECISION_PAGE = "rungs/precision.md"
LONG = ("llama3.2-1b", A100, 8192)  # model, cluster, sequence of a step that runs out of memory
WAYS = {  # to train it on a batch of 4
    "whole": "bf16 micro=4 batch=4",
    "accumulate": "bf16 micro=1 batch=4",
    "recompute": "bf16 micro=4 batch=4 recompute=blocks",
    "offload": "bf16 micro=1 batch=4 offload=optimizer",
}

PRECISION = Unit(
    "precision",
    "Number formats and mixed precision",
    "Know what each format can hold, and train in 16 bits without losing updates.",
    hours=6,
    exercises=(
        Exercise("Floating-point formats, bit by bit", "formats", page=PRECISION_PAGE),
        Exercise(
            "Autocast, and fp32 against fp16 and bf16",
            "mixed-precision",
            "stepladder verify precision",
            PRECISION_PAGE,
        ),
        Exercise(
            "The loss scale and its rule",
            "loss-scale",
            "stepladder verify precision --gradients",
        ),
        Exercise("Why weights are kept in float32", "master-weights"),
        Exercise("TF32, and float32 out of three of it", "tf32", bonus=True),
        Exercise(
            "Attention in 16 bits, and a stable softmax", "attention-precision", bonus=True
        ),
    ),
    takeaways=(
        "fp16 has a finer step and little range, bf16 float32's range and a coarse step.",
        "A loss scale moves exponents only: no digit is lost by it.",
        "Updates are small against weights: in bf16 alone most are rounded away.",
    ),
    checklist=(
        Question(
            "largest",
            "What is the largest number that fp16 holds?",
            lambda: figures.fp16_of_bits(0x7BFF),
            within=0,
            traps=(Trap(lambda: 2**16, "That is one step too far: it is infinite"),),
        ),
        Question(
            "step",
            "How far apart are 1 and the next larger number in bf16?",
            lambda: figures.bf16_of_bits(figures.bits_of_one() + 1) - 1,
            traps=(
                Trap(lambda: figures.fp16_of_bits(0x3C01) - 1, "That is fp16's step"),
                Trap(
                    lambda: (figures.bf16_of_bits(figures.bits_of_one() + 1) - 1) / 2,
                    "That is half a step: what is smaller is rounded away",
                ),
            ),
        ),
        Question(
            "scale",
            "A gradient is 2^-27. What is the smallest loss scale, a power of two, with which fp16 "
            "does not round it to zero?",
            lambda: figures.smallest(
                lambda scale: figures.fp16(scale * 2.0**-27) != 0,
                [2**power for power in range(20)],
            ),
            within=0,
            traps=(
                Trap(lambda: 4, "That makes 2^-25, half the smallest fp16: it is rounded to even"),
            ),
        ),
        Question(
            "t4",
            "Which 16-bit format do a T4's matrix units have?",
            lambda: figures.only_format("T4", ("bf16", "fp16")),
            choices=("bf16", "fp16"),
            traps=(Trap(lambda: "bf16", "It came with the generation after"),),
            shown_by='stepladder plan gpt2 --on "1 T4" --plan "bf16 micro=8"',
        ),
    ),
)  # fmt: skip

MEMORY = Unit(
    "memory",
    "Memory: owners, accumulation, recomputation, offload",
    "Say who owns each gigabyte of a step, and bring it down in the order of the price.",
    hours=7,
    exercises=(
        Exercise(
            "Where training memory goes",
            "training-memory",
            'stepladder plan llama2-7b --on "1 A100-80GB" --plan "bf16 micro=1"',
            "glossary.md",
        ),
        Exercise(
            "The largest batch, accumulation, checkpointing, leaks, out of memory",
            "memory",
            "stepladder bench batch --steps 2",
            "rungs/accumulation.md",
        ),
        Exercise("Accumulate a batch", command="stepladder bench accumulation --steps 2"),
        Exercise(
            "Recompute: manual checkpoints and their best frequency",
            "checkpointing",
            "stepladder bench recompute --steps 2",
            "rungs/recomputation.md",
        ),
        Exercise(
            "The memory dashboard",
            "memory-dashboard",
            "stepladder profile --memory --steps 2",
            "watching.md",
            bonus=True,
        ),
        Exercise("A loss whose logits never exist whole", "logits", page="losses.md", bonus=True),
        Exercise(
            "Activations that wait in host memory", "offloading", page="rungs/offload.md",
            bonus=True,
        ),
    ),
    takeaways=(
        "Training keeps 16 bytes a parameter with AdamW; inference keeps 2.",
        "Activations grow with micro-batch and sequence, logits with the vocabulary too.",
        "In the order of the price: micro-batch, precision, recomputation, sharding, offload.",
    ),
    checklist=(
        Question(
            "bytes",
            "How many bytes a parameter does a rank keep under DDP in bf16 mixed precision with "
            "AdamW, gradients counted?",
            lambda: figures.state_per_parameter("llama2-7b", "bf16 ddp micro=1", EIGHT),
            traps=(
                Trap(lambda: 2, "That is the bf16 weight alone, as in inference"),
                Trap(
                    lambda: figures.state_per_parameter("llama2-7b", "bf16 ddp micro=1", EIGHT) - 4,
                    "The gradients are missing",
                ),
            ),
        ),
        Question(
            "state",
            "How many GiB is that for Llama 2 7B?",
            lambda: figures.told("llama2-7b", "bf16 ddp micro=1", EIGHT).memory.state_bytes
            / figures.GIB,
            unit="GiB",
            traps=(
                Trap(
                    lambda: figures.told("llama2-7b", "bf16 ddp micro=1", EIGHT).memory.state_bytes
                    / 1e9,
                    "That is in GB: a GiB is 2^30 bytes",
                ),
                Trap(
                    lambda: 2 * figures.facts("llama2-7b").parameters / figures.GIB,
                    "That is the bf16 weights alone",
                ),
            ),
        ),
        Question(
            "price",
            "By what factor does recompute=blocks lengthen a step of Llama 2 7B under 'bf16 zero3 "
            "micro=1' on 8 x A100-80GB, by the planner?",
            lambda: figures.ratio(
                "llama2-7b", EIGHT, slow="bf16 zero3 micro=1 recompute=blocks",
                fast="bf16 zero3 micro=1",
            ),
            within=0.03,
            traps=(
                Trap(lambda: 4 / 3, "That is the bound: matmuls alone, and nothing to hide"),
                Trap(lambda: 2, "It does not compute everything twice: forward is a third"),
            ),
            shown_by='stepladder plan llama2-7b --on "8 x A100-80GB" --plan "bf16 zero3 micro=1"',
        ),
        Question(
            "owner",
            "Llama 3.2 1B, sequences of 8,192, 'bf16 micro=4 batch=4 recompute=blocks' on one "
            "A100-80GB: who owns most of the memory?",
            lambda: figures.told(LONG[0], WAYS["recompute"], LONG[1], LONG[2])
            .memory.largest_owner()[0],
            choices=("parameters", "gradients", "optimizer", "activations", "logits"),
            traps=(Trap(lambda: "activations", "They are recomputed: only blocks' inputs stay"),),
            shown_by="stepladder plan llama3.2-1b --sequence 8192 --on "
            '"1 A100-80GB" --plan "bf16 micro=4 batch=4 recompute=blocks"',
        ),
        Question(
            "way",
            "The same model and a batch of 4. By the planner, which way is the fastest that fits: "
            "whole (micro=4), "
            "accumulate (micro=1), recompute (micro=4 recompute=blocks), offload (micro=1 "
            "offload=optimizer)?",
            lambda: figures.fastest(
                {name: figures.told(LONG[0], way, LONG[1], LONG[2]) for name, way in WAYS.items()}
            ),
            choices=tuple(WAYS),
            traps=(Trap(lambda: "whole", "It does not fit"),),
        ),
    ),
)  # fmt: skip

MEMORY_AND_PRECISION = CoursePart("Memory and precision", (PRECISION, MEMORY))
