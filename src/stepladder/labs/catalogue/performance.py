"""The labs on performance: what bounds an operation, a kernel and a step."""

from __future__ import annotations

from stepladder.labs.lab import Course, Lab, Picture

PERFORMANCE = Course(
    "Performance: one device",
    (
        Lab(
            "roofline",
            "The roofline: bound by arithmetic or by memory",
            seconds=2,
            library="stepladder.bench.device.roofline.Roofs",
            picture=Picture("FLOPs per byte", ("attainable TFLOP/s",), log="xy"),
        ),
        Lab(
            "matmul-kernel",
            "A tiled matmul, and the bytes that it moves",
            seconds=2,
            library="torch.matmul",
            picture=Picture("tile", ("KiB moved", "FLOPs per byte"), log="xy"),
        ),
        Lab(
            "occupancy",
            "Occupancy: blocks on a multiprocessor, and waves of them",
            seconds=1,
            library="torch.cuda.get_device_properties",
            picture=Picture("size", ("share of the waves",)),
        ),
        Lab(
            "torch-profiler",
            "Profile a step, and find the slow operator",
            seconds=3,
            library="torch.profiler.profile",
            picture=Picture("operator", ("self ms",)),
        ),
    ),
)
