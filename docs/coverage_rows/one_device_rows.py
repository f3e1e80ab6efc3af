"""What happens on one device: arithmetic, precision, memory, data, profiling."""

from __future__ import annotations

from .device_rows import ARITHMETIC, DEVICES
from .row import Part, Row

TRAIN = "--model.name gpt-tiny --train.sample 0 --train.batch 8"

PRECISION = Part(
    "Precision and AMP",
    (
        Row(
            "formats",
            "fp32, fp16, bf16, fp8: what each can hold",
            "rungs/precision.md",
            "stepladder lab run formats",
            r"^bf16 16",
            lab="formats",
            lines=4,
        ),
        Row(
            "precisions",
            "Time, memory and loss of each precision on this machine",
            "rungs/precision.md#measured",
            "stepladder bench precision --steps 2 --batch 2",
            r"^bf16 ",
            lab="mixed-precision",
        ),
        Row(
            "amp-proof",
            "A proof that mixed precision learns the same",
            "sameness.md",
            f"stepladder verify precision {TRAIN} --train.steps 4",
            r"(?i)bf16.*fp32|fp32.*bf16",
            lab="mixed-precision",
        ),
        Row(
            "underflow",
            "Gradients that underflow, layer by layer",
            "troubleshooting.md#nan",
            f"stepladder verify precision --gradients {TRAIN} --train.steps 2",
            r"^name norm",
            lab="loss-scale",
            lines=2,
        ),
        Row(
            "loss-scale",
            "The loss scale and its rule",
            "rungs/precision.md",
            "stepladder lab run loss-scale",
            r"step .*scale",
            lab="loss-scale",
            lines=4,
        ),
        Row(
            "master-weights",
            "Why weights stay in float32",
            "rungs/precision.md",
            "stepladder lab run master-weights",
            r"pushes of 0\.0001",
            lab="master-weights",
            lines=4,
        ),
        Row(
            "no-units",
            "A precision that a device has no matrix units for is refused",
            "interview.md#fp16-or-bf16",
            'stepladder plan gpt2 --on "1 T4" --plan "bf16 micro=8"',
            r"bf16 needs matrix units",
            exit_code=2,
        ),
        Row(
            "tf32",
            "TF32, and float32 out of three of it",
            "rungs/precision.md",
            "stepladder lab run tf32",
            r"^tf32 ",
            lab="tf32",
            lines=2,
        ),
    ),
)

MEMORY = Part(
    "Memory",
    (
        Row(
            "owners",
            "Where training memory goes: 16 bytes a parameter, then activations",
            "interview.md#where-does-training-memory-go",
            'stepladder plan llama2-7b --on "1 A100-80GB" --plan "bf16 micro=1"',
            r"Largest owner: optimizer",
            exit_code=1,  # it does not fit
            lab="training-memory",
        ),
        Row(
            "measured-owners",
            "The same, measured over a step on this machine",
            "profiling.md#memory-over-a-step",
            f"stepladder profile --memory --steps 1 {TRAIN}",
            r"^owner start",
            lab="memory-dashboard",
            lines=5,
        ),
        Row(
            "batch-size",
            "Throughput and memory of each batch size",
            "rungs/accumulation.md",
            "stepladder bench batch --steps 1 --batch 4",
            r"^batch ms",
            lab="memory",
            lines=4,
        ),
        Row(
            "accumulation",
            "Accumulation: one batch in more and more micro-batches",
            "rungs/accumulation.md",
            "stepladder bench accumulation --steps 1",
            r"^micro-batches",
            lab="memory",
            lines=5,
        ),
        Row(
            "recomputation",
            "Recomputation: none, selective, every k, all blocks",
            "rungs/recomputation.md",
            "stepladder bench recompute --steps 1",
            r"^blocks",
            lab="checkpointing",
        ),
        Row(
            "offload",
            "Activations that wait in host memory",
            "rungs/offload.md",
            "stepladder lab run offloading",
            r"KiB sent",
            lab="offloading",
            lines=4,
        ),
        Row(
            "out-of-memory",
            "Out of memory: who is the largest owner, and what brings it down",
            "interview.md#out-of-memory-what-now",
            'stepladder plan llama3.2-1b --sequence 8192 --on "1 A100-80GB" --plan "bf16 micro=4"',
            r"memory: needs",
            exit_code=1,
            lab="memory",
        ),
    ),
)

DATA = Part(
    "Data loading",
    (
        Row(
            "loader",
            "How fast batches arrive, by number of workers",
            "data.md#a-dataloader",
            "stepladder bench data --steps 2",
            r"^workers",
            lines=6,
        ),
        Row(
            "order",
            "A sample order that does not depend on the ranks, and that any step can be found in",
            "data.md",
            'python -c "from stepladder.data import SampleOrder; '
            'print(SampleOrder(1_000_000, seed=0).indices([26, 999_999]))"',
            r"\[\d+ \d+\]",
        ),
    ),
)

PROFILING = Part(
    "Profiling",
    (
        Row(
            "profile",
            "Seconds by cause, what bounds the step, and what would help",
            "profiling.md",
            f"stepladder profile --steps 1 {TRAIN}",
            r"^verdict",
        ),
    ),
)

ONE_DEVICE = (DEVICES, ARITHMETIC, PRECISION, MEMORY, DATA, PROFILING)
