"""The second course: many devices, and its bonus."""

from __future__ import annotations

from stepladder.labs.lab import Course, Lab, Picture

MANY_DEVICES = Course(
    "Second course: many devices",
    (
        Lab(
            "ddp",
            "DDP from scratch",
            seconds=3,
            ranks=2,
            library="torch.nn.parallel.DistributedDataParallel",
            rungs=("ddp",),
            picture=Picture("step", ("loss",), by="ranks"),
        ),
        Lab(
            "ddp-accumulation",
            "Accumulation with DDP and its convergence",
            seconds=3,
            ranks=2,
            library="stepladder.climb",
            rungs=("accumulate",),
            picture=Picture("step", ("loss",), by="micro-batches"),
        ),
        Lab(
            "full-sharding",
            "Full sharding: a model no rank could hold",
            seconds=6,
            ranks=4,
            library="torch.distributed.fsdp.fully_shard",
            rungs=("zero2_zero3",),
            picture=Picture("strategy", ("peak_kib", "sent_kib")),
        ),
        Lab(
            "sharded-precision",
            "Mixed precision with sharding",
            seconds=4,
            ranks=2,
            library="torch.distributed.fsdp.MixedPrecisionPolicy",
            rungs=("precision", "zero2_zero3"),
            picture=Picture("case", ("loss", "moved", "sent_kib")),
        ),
        Lab(
            "many-nodes",
            "Many nodes: bandwidth, and checkpoints that survive",
            seconds=4,
            ranks=2,
            library="torch.distributed.checkpoint.save",
            picture=Picture("kib", ("mb_per_s",), log="x"),
        ),
        Lab(
            "overlap",
            "Profiling: find the bottleneck, hide the talking",
            seconds=3,
            ranks=2,
            library="torch.nn.parallel.DistributedDataParallel",
            rungs=("ddp",),
            picture=Picture("layers_each", ("efficiency",), log="x"),
        ),
    ),
)

MANY_DEVICES_BONUS = Course(
    "Bonus: many devices",
    (
        Lab(
            "ring",
            "Ring all-reduce from scratch, with its picture",
            seconds=2,
            ranks=4,
            library="torch.distributed.all_reduce",
            picture=Picture("chunk", ("rank",), by="step", shade="ranks_added"),
        ),
        Lab(
            "gpipe",
            "Pipeline parallelism as GPipe does it",
            seconds=2,
            ranks=2,
            library="torch.distributed.pipelining.ScheduleGPipe",
            rungs=("pipeline",),
            picture=Picture("micro_batches", ("waiting",), log="x"),
        ),
        Lab(
            "tensor-parallel",
            "Tensor parallel by hand",
            seconds=2,
            ranks=2,
            library="torch.distributed.tensor.parallel.parallelize_module",
            rungs=("tensor_parallel",),
            picture=Picture("ranks", ("weights_kib",), log="x"),
        ),
        Lab(
            "zero",
            "ZeRO by hand, and against DeepSpeed where it is installed",
            seconds=2,
            ranks=2,
            library="torch.distributed.optim.ZeroRedundancyOptimizer",
            rungs=("zero2_zero3", "zero1"),
        ),
        Lab(
            "context-parallel",
            "Context parallel: attention over a cut sequence",
            seconds=3,
            ranks=2,
            library="stepladder.climb",
            rungs=("context_parallel", "gather_keys_values"),
            picture=Picture("rank", ("pairs",), by="ranks"),
        ),
        Lab(
            "powersgd",
            "PowerSGD: gradients as two thin matrices",
            seconds=2,
            ranks=2,
            library="torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.powerSGD_hook",
            rungs=("gradient_compression",),
            picture=Picture("steps", ("error",), by="how", log="xy"),
        ),
        Lab(
            "elastic",
            "Elastic training through a node's failure",
            seconds=4,
            ranks=3,
            library="torch.distributed.launcher.api.elastic_launch",
            picture=Picture("step", ("loss", "ranks"), by="case"),
        ),
    ),
)
