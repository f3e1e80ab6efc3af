"""The capstones: each asks for what several labs have taught."""

from __future__ import annotations

from stepladder.labs.lab import Course, Lab, Picture

CAPSTONES = Course(
    "Capstones",
    (
        Lab(
            "plan-70b",
            "A 70B on 64 GPUs, planned, defended and simulated",
            seconds=6,
            library="stepladder.search",
        ),
        Lab(
            "five-faults",
            "Find five faults in a training job",
            seconds=4,
            ranks=2,
            library="torch.nn.parallel.DistributedDataParallel",
            picture=Picture("epoch", ("loss",), by="ranks"),
        ),
        Lab(
            "node-failure",
            "A small GPT through a node's failure, with 90 % of the work kept",
            seconds=8,
            ranks=4,
            library="torch.distributed.launcher.api.elastic_launch",
            picture=Picture("every", ("mean", "worst"), by="case", log="x"),
        ),
    ),
)
