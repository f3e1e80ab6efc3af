"""The labs on scaling: starting ranks, what they learn, and what more of them are worth."""

from __future__ import annotations

from stepladder.labs.lab import Course, Lab, Picture

SCALING = Course(
    "Scaling",
    (
        Lab(
            "learning-rate",
            "The learning rate of a larger batch, and warm-up",
            seconds=3,
            library="stepladder.plan.learning_rate.scale_rate",
            picture=Picture("case", ("excess loss",), log="y"),
        ),
        Lab(
            "torchrun",
            "Start ranks yourself: a script for torchrun",
            seconds=12,
            ranks=2,
            library="torch.distributed.run",
        ),
        Lab(
            "data-order",
            "The data order: shuffled alike on all ranks, resumed in an epoch",
            seconds=2,
            ranks=4,
            library="stepladder.data.SampleOrder",
        ),
        Lab(
            "three-walls",
            "Strong and weak scaling, Amdahl's law and the three walls",
            seconds=3,
            library="stepladder.forecast",
            picture=Picture("devices", ("efficiency",), by="scaling", log="x"),
        ),
        Lab(
            "pipeline-bubble",
            "Pipeline or data parallel: the bubble, the bytes, the memory",
            seconds=2,
            ranks=3,
            library="stepladder.planner.bubble_share",
            picture=Picture("way", ("computes", "GB sent", "GB kept")),
        ),
        Lab(
            "expert-routing",
            "A mixture of experts: routing, capacity, balance, all-to-all",
            rungs=("expert_parallel",),
            seconds=2,
            ranks=2,
            library="torch.distributed.all_to_all_single",
            picture=Picture("router", ("dropped", "balance loss")),
        ),
    ),
)
