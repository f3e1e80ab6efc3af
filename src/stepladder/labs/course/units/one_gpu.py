"""The first part: one GPU, from a tensor to a trained network."""

from __future__ import annotations

from stepladder.labs.course import figures
from stepladder.labs.course.unit import CoursePart, Exercise, Question, Trap, Unit

A100 = "1 A100-80GB"

TENSORS = Unit(
    "tensors",
    "Tensors and devices",
    "Know what a tensor is in memory, put it on a device, and time what happens there.",
    hours=3,
    exercises=(
        Exercise("Index storage by hand: strides, views, windows", "views"),
        Exercise(
            "Detect a device, move to it, explain a mismatch, fall back to the CPU, time it",
            "devices",
            "stepladder doctor",
            "install.md",
        ),
        Exercise("Read what this machine can do", command="stepladder doctor --quick"),
    ),
    takeaways=(
        "A view is another pair of shape and strides on the same storage; a copy costs bytes.",
        "Work on a GPU is queued: a clock that does not wait for it measures the queue.",
        "Bytes over bandwidth is the first estimate of anything that computes little.",
    ),
    checklist=(
        Question(
            "stride",
            "How many elements lie between x[0, 0, 0] and x[1, 0, 0] of a contiguous tensor of "
            "shape (4, 6, 5)?",
            lambda: figures.strides((4, 6, 5))[0],
            within=0,
            traps=(
                Trap(lambda: figures.strides((4, 6, 5))[1], "That is one step along dimension 1"),
                Trap(lambda: 4 * 6 * 5, "That is the whole tensor"),
            ),
        ),
        Question(
            "copy",
            "How many milliseconds does 1 GB take from the host to an A100-80GB, at the rate of "
            "its host link?",
            lambda: 1e3 * 1e9 / figures.host_rate("A100-80GB"),
            unit="ms",
            traps=(
                Trap(
                    lambda: 1e3 * 1e9 / figures.memory_rate("A100-80GB"),
                    "That is the rate of the card's own memory; the host link is slower",
                ),
                Trap(
                    lambda: 1e3 * 1e9 / figures.host_rate("A100-80GB") / 2,
                    "That counts both directions of the link: a copy goes one way",
                ),
            ),
            shown_by='python -c "import stepladder as sl; '
            "print(sl.Cluster.parse('1 A100-80GB').device)\"",
        ),
        Question(
            "read",
            "How many milliseconds does an A100-80GB need to read 10 GB of its own memory once?",
            lambda: 1e3 * 10e9 / figures.memory_rate("A100-80GB"),
            unit="ms",
        ),
    ),
)

ARITHMETIC = Unit(
    "arithmetic",
    "Arithmetic: FLOPs, MFU and kernels",
    "Count what a step computes, say what bounds it, and what share of the hardware it uses.",
    hours=8,
    exercises=(
        Exercise(
            "Count the FLOPs of a network and its MFU",
            "flops",
            'stepladder plan llama2-7b --on "8 x A100-80GB" --plan "bf16 zero3 micro=1"',
            "speed.md",
        ),
        Exercise(
            "Say of an operation whether arithmetic or memory bounds it",
            "roofline",
            "stepladder bench roofline",
            "experiments.md",
        ),
        Exercise("Tile a matmul and count the bytes that it moves", "matmul-kernel"),
        Exercise(
            "Read a GPU's memory, multiprocessors and occupancy",
            command="stepladder doctor --device H100-80GB",
            page="gpu.md",
        ),
        Exercise(
            "One matmul in several ways, and copies between memories",
            command="stepladder bench matmul",
            page="gpu.md",
        ),
        Exercise("See what a compiler sees: graphs, breaks, shapes", "compiling"),
        Exercise(
            "Count the blocks on a multiprocessor, and the waves of a kernel",
            "occupancy",
            bonus=True,
        ),
        Exercise(
            "Write a kernel, call it from torch, measure the bytes it moves",
            "custom-kernel",
            page="rungs/compile.md",
            bonus=True,
        ),
    ),
    takeaways=(
        "An operation with fewer FLOPs per byte than the device's balance is bound by memory.",
        "6 FLOPs per parameter and token is a lower bound: attention comes on top.",
        "MFU counts the model's own FLOPs; what is computed twice does not raise it.",
    ),
    checklist=(
        Question(
            "balance",
            "Below how many FLOPs per byte is an A100-80GB bound by its memory, in bf16?",
            lambda: figures.peak_flops("A100-80GB") / figures.memory_rate("A100-80GB"),
            unit="FLOPs/byte",
            traps=(
                Trap(
                    lambda: (
                        figures.peak_flops("A100-80GB", "fp32") / figures.memory_rate("A100-80GB")
                    ),
                    "That is the balance of fp32, without matrix units",
                ),
            ),
        ),
        Question(
            "token",
            "How many GFLOPs does one token cost in training Llama 2 7B with sequences of 4,096, "
            "attention counted, without the half of the scores that the mask hides?",
            lambda: figures.flops_per_token("llama2-7b") / 1e9,
            unit="GFLOP",
            traps=(
                Trap(
                    lambda: 6 * figures.facts("llama2-7b").parameters / 1e9,
                    "That is 6 per parameter: attention is missing",
                ),
                Trap(
                    lambda: figures.flops_per_token("llama2-7b") / 3e9,
                    "That is forward alone: backward costs twice as much again",
                ),
                Trap(
                    lambda: figures.flops_per_token("llama2-7b", masked=True) / 1e9,
                    "That counts the scores that the mask hides, too",
                ),
            ),
        ),
        Question(
            "mfu",
            "With so many FLOPs a token, a run of Llama 2 7B trains on 3,500 tokens/s on each A100 "
            "in bf16. What is its MFU, in percent?",
            lambda: figures.mfu("llama2-7b", "A100-80GB", 3_500),
            unit="%",
            traps=(
                Trap(
                    lambda: figures.mfu("llama2-7b", "A100-80GB", 3_500, masked=True),
                    "That counts the scores that the mask hides, too: so do many reports",
                ),
                Trap(
                    lambda: (
                        100
                        * 6
                        * figures.facts("llama2-7b").parameters
                        * 3_500
                        / figures.peak_flops("A100-80GB")
                    ),
                    "That is 6 FLOPs per parameter and token: attention is missing",
                ),
            ),
        ),
        Question(
            "bound",
            "What bounds the sum of two bf16 tensors of 4096 x 4096 on an A100-80GB?",
            lambda: "memory" if figures.sum_intensity(2) < figures.balance("A100-80GB") else "math",
            choices=("memory", "math"),
            traps=(Trap(lambda: "math", "It computes one FLOP for six bytes"),),
        ),
        Question(
            "cores",
            "An A100 has 6,912 CUDA cores and 432 tensor cores (`stepladder doctor --device "
            "A100-80GB`). What is the fp32 peak of its CUDA cores at 1.41 GHz?",
            lambda: figures.core_flops("A100-80GB") / 1e12,
            unit="TFLOP/s",
            traps=(
                Trap(
                    lambda: figures.core_flops("A100-80GB") / 2e12,
                    "A core multiplies and adds in one clock: two FLOPs",
                ),
                Trap(
                    lambda: figures.peak_flops("A100-80GB") / 1e12,
                    "That is the tensor cores' peak, in bf16",
                ),
            ),
        ),
        Question(
            "blocks",
            "How many blocks of 256 threads, with 64 registers a thread and 48 KiB of shared "
            "memory, fit one multiprocessor of an H100 at once?",
            lambda: figures.blocks("H100-80GB", "threads=256 registers=64 shared=48KiB"),
            traps=(
                Trap(
                    lambda: figures.blocks("H100-80GB", "threads=256"),
                    "That is what its warps allow: registers and shared memory are used up sooner",
                ),
            ),
        ),
    ),
)

ONE_DEVICE = Unit(
    "one-device",
    "End to end on one device",
    "Train a network on CPU, GPU and GPU with mixed precision, and say where the time goes.",
    hours=5,
    exercises=(
        Exercise(
            "Digits, from CPU to GPU to mixed precision",
            "digits",
            "stepladder train --train.steps 50 --train.sample 0",
            "tutorial.md",
        ),
        Exercise(
            "Profile a step: find the slow operator; what bounds it, what would help",
            "torch-profiler",
            "stepladder profile --steps 2",
            page="profiling.md",
        ),
        Exercise("Compare precisions on this machine",
                 command="stepladder bench precision --steps 2"),
        Exercise("Load data without waiting for it", command="stepladder bench data --steps 3",
                 page="data.md", bonus=True),
    ),
    takeaways=(
        "Measure on the whole step; a faster kernel that nobody waits for gains nothing.",
        "A device that waits for its data is not helped by another device.",
        "On a small network launches cost more than arithmetic.",
    ),
    checklist=(
        Question(
            "speedup",
            "By what factor is bf16 faster than fp32 (no TF32) for gpt2 with micro=8 on one "
            "A100-40GB, by the planner?",
            lambda: figures.ratio(
                "gpt2", "1 A100-40GB", slow="fp32 micro=8 batch=8", fast="bf16 micro=8 batch=8"
            ),
            within=0.05,
            traps=(
                Trap(
                    lambda: figures.peak_flops("A100-40GB")
                    / figures.peak_flops("A100-40GB", "fp32"),
                    "That is the ratio of the peaks: not all of a step is matmuls",
                ),
                Trap(
                    lambda: figures.ratio(
                        "gpt2",
                        "1 A100-40GB",
                        slow="tf32 micro=8 batch=8",
                        fast="bf16 micro=8 batch=8",
                    ),
                    "That is against tf32",
                ),
            ),
            shown_by='stepladder plan gpt2 --on "1 A100-40GB" --plan "fp32 micro=8 batch=8"',
        ),
        Question(
            "micro",
            "Which micro-batch, a power of two, is the largest that fits gpt2 with 'bf16 micro=N "
            "batch=N' on one A100-40GB, by the planner?",
            lambda: figures.largest(
                lambda size: figures.told("gpt2", f"bf16 micro={size} batch={size}", "1 A100-40GB")
                .fits,
                [2**power for power in range(10)],
            ),
            within=0,
            shown_by='stepladder plan gpt2 --on "1 A100-40GB" --plan "bf16 micro=8 batch=8"',
        ),
    ),
)  # fmt: skip

ONE_GPU = CoursePart("One GPU", (TENSORS, ARITHMETIC, ONE_DEVICE))
