"""What a device is and what bounds it: memories, multiprocessors, FLOPs, MFU, the roofline."""

from __future__ import annotations

from .row import Part, Row

DEVICES = Part(
    "GPU basics and devices",
    (
        Row(
            "machine",
            "What this machine has: devices, memory, links, precisions that work",
            "install.md",
            "stepladder doctor --quick",
            r"(?i)cpu",
        ),
        Row(
            "device-table",
            "What a GPU can do: peaks by precision, memory and its bandwidth",
            "planner.md#how-a-cluster-is-written",
            "python -c \"import stepladder as sl; a = sl.Cluster.parse('1 A100-80GB').device; "
            "print(a.peak('bf16') / 1e12, 'TFLOP/s', a.bandwidth_bytes_per_second / 1e12, "
            "'TB/s')\"",
            r"312\.0 TFLOP/s",
        ),
        Row(
            "memory-levels",
            "From registers to host memory: size and rate of each level of a GPU",
            "gpu.md#memory-nearest-first",
            "stepladder doctor --device H100-80GB",
            r"(?i)^.*L2",
            lines=3,
        ),
        Row(
            "occupancy",
            "Blocks and warps on a multiprocessor, by threads, registers and shared memory",
            "gpu.md#occupancy",
            'stepladder doctor --device H100-80GB --block "threads=256 registers=64 shared=48KiB"',
            r"occupancy",
            lab="occupancy",
            lines=3,
        ),
        Row(
            "cpu-gpu-amp",
            "One net on CPU, GPU and GPU with autocast: time, memory, accuracy",
            "experiments.md#one-net-on-cpu-and-gpu-with-and-without-amp",
            "stepladder bench devices --epochs 1",
            r"(?i)cpu.*fp32|fp32.*cpu",
            lab="digits",
            lines=2,
        ),
        Row(
            "tensors",
            "Tensors, views and strides: what is copied and what is not",
            "labs.md",
            "stepladder lab run views",
            r"transpose \(4, 3\)",
            lab="views",
        ),
        Row(
            "placement",
            "Detect a device, move to it, explain a mismatch, fall back, time it",
            "troubleshooting.md#tensors-on-two-devices",
            "stepladder lab run devices",
            r"^device size",
            lab="devices",
            lines=4,
        ),
        Row(
            "calibrate",
            "The rates of this machine, measured for forecasts",
            "planner.md",
            "stepladder calibrate --seconds 5 --out here.json",
            r"(?i)matmul|here\.json",
        ),
        Row(
            "custom-kernel",
            "A kernel of one's own, and the bytes that it saves",
            "rungs/compile.md",
            "stepladder lab run custom-kernel",
            r"MB moved",
            lab="custom-kernel",
            lines=3,
        ),
    ),
)

ARITHMETIC = Part(
    "FLOPs, MFU, roofline",
    (
        Row(
            "flops",
            "FLOPs of a step: 6 a parameter and token, and attention on top",
            "interview.md#why-is-mfu-never-1-and-what-is-good",
            "stepladder lab run flops",
            r"length .*GFLOP",
            lab="flops",
            lines=4,
        ),
        Row(
            "matmul",
            "One product from three loops to the library's, and copies between memories",
            "gpu.md#one-matmul-written-in-several-ways",
            "stepladder bench matmul --device cpu",
            r"(?i)loop",
            lab="matmul-kernel",
            lines=4,
        ),
        Row(
            "walls",
            "Three walls: memory, compute, communication; what passes each",
            "walls.md",
            "stepladder bench walls",
            r"(?i)memory",
            lab="three-walls",
            lines=5,
        ),
        Row(
            "mfu",
            "MFU: the share of the peak that a model's own FLOPs reach",
            "interview.md#why-is-mfu-never-1-and-what-is-good",
            'stepladder plan llama3-8b --sequence 8192 --on "8 x H100-80GB" '
            '--plan "bf16 zero3 micro=1 recompute=selective compile=on"',
            r"tokens/s a device, MFU",
            lab="flops",
        ),
        Row(
            "roofline",
            "The roofline: what arithmetic bounds, and what memory bounds",
            "experiments.md#the-roofline-of-this-device",
            "stepladder bench roofline --steps 1",
            r"(layer norm|GELU) .*memory",
        ),
        Row(
            "flash-attention",
            "FlashAttention: the scores never exist, and the FLOPs stay",
            "interview.md#what-does-flashattention-save",
            "python -c \"import stepladder as sl; m = [sl.forecast('llama3-8b', 'bf16 zero3 '"
            "'micro=1 attention=' + how, '8 x H100-80GB').memory.activations / 2**30 "
            "for how in ('plain', 'flash')]; "
            "print('GiB of activations: plain %.1f, flash %.1f' % tuple(m))\"",
            r"GiB of activations: plain \d+\.\d, flash \d+\.\d",
        ),
    ),
)
