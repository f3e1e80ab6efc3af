"""The foundations and the first course, on one device, with its bonus."""

from __future__ import annotations

from stepladder.labs.lab import Course, Lab, Picture

FOUNDATIONS = Course(
    "Foundations",
    (
        Lab(
            "views",
            "Tensors, views, strides and storage",
            seconds=1,
            library="torch.Tensor.unfold",
            rungs=("channels_last",),
        ),
        Lab(
            "formats",
            "Floating-point formats, bit by bit",
            seconds=2,
            library="torch.finfo",
            rungs=("precision", "convert_float8"),
            picture=Picture("format", ("error of a tenth",), log="y"),
        ),
        Lab(
            "flops",
            "FLOPs and MFU",
            seconds=2,
            library="stepladder.model.count_flops",
            picture=Picture("length", ("step GFLOP", "6N's share")),
        ),
        Lab(
            "training-memory",
            "Where training memory goes",
            seconds=2,
            library="stepladder.measure.measure_memory",
            picture=Picture("rows", ("activations", "share of activations"), log="x"),
        ),
        Lab(
            "loss-scale",
            "How the loss scale moves",
            seconds=2,
            library="torch.amp.GradScaler",
            rungs=("loss_scale",),
            picture=Picture("step", ("scale",), log="y"),
        ),
        Lab(
            "master-weights",
            "Why weights are kept in float32",
            seconds=2,
            library="torch.autocast",
            rungs=("precision",),
            picture=Picture("pushes of 0.0001", ("float16 alone", "with a master"), log="x"),
        ),
    ),
)

ONE_DEVICE = Course(
    "First course: one device",
    (
        Lab(
            "devices",
            "GPU basics: detection, placement, mismatches, fallback, timing",
            seconds=2,
            library="stepladder.world.pick_device",
            picture=Picture("size", ("ms", "ms without waiting"), log="x"),
        ),
        Lab(
            "mixed-precision",
            "Mixed precision: autocast, loss scaling, fp32 against fp16 and bf16",
            seconds=3,
            library="stepladder.climb",
            rungs=("precision", "loss_scale"),
            picture=Picture("precision", ("step ms", "kept KiB")),
        ),
        Lab(
            "memory",
            "Memory: batch size, accumulation, checkpointing, leaks, out of memory",
            seconds=3,
            library="stepladder.climb",
            rungs=("accumulate", "recompute", "memory_limit"),
        ),
        Lab(
            "digits",
            "End to end: a digit classifier from CPU to GPU to mixed precision",
            seconds=4,
            library="stepladder.climb",
            picture=Picture("on", ("seconds", "speed-up")),
        ),
    ),
)

ONE_DEVICE_BONUS = Course(
    "Bonus: one device",
    (
        Lab(
            "threads",
            "Several GPUs in one process, and why not",
            seconds=2,
            library="stepladder.bench.ring_all_reduce.ring_bytes",
            picture=Picture("ways", ("models over the first link", "models over a ring's link")),
        ),
        Lab(
            "custom-kernel",
            "A custom kernel called from torch, and measured",
            seconds=4,
            library="torch.library.opcheck",
            rungs=("kernels", "choose"),
            picture=Picture("way", ("MB moved", "ms")),
        ),
        Lab(
            "memory-dashboard",
            "The memory dashboard",
            seconds=2,
            library="stepladder.measure.MemoryMeter",
            picture=Picture("time", ("total", "activations"), by="gradients are"),
        ),
        Lab(
            "checkpointing",
            "Manual checkpointing and its best frequency",
            seconds=2,
            library="torch.utils.checkpoint.checkpoint",
            rungs=("recompute",),
            picture=Picture("segments", ("activations held", "layer calls")),
        ),
        Lab(
            "attention-precision",
            "Mixed precision in attention, and a stable softmax",
            seconds=2,
            library="torch.nn.functional.scaled_dot_product_attention",
            picture=Picture(
                "size of q and k", ("stable fp16", "blockwise fp16", "blockwise bf16"), log="xy"
            ),
        ),
        Lab(
            "logits",
            "A loss whose logits never exist whole",
            seconds=2,
            library="torch.nn.functional.cross_entropy",
            rungs=("fused_head",),
            picture=Picture("chunks", ("KiB of logits",)),
        ),
        Lab(
            "tf32",
            "TF32, and float32 out of three of it",
            seconds=2,
            library="torch.set_float32_matmul_precision",
            rungs=("precision",),
            picture=Picture("product", ("relative error",), log="y"),
        ),
        Lab(
            "compiling",
            "What a compiler sees: graphs, breaks and shapes",
            seconds=5,
            library="torch.compile",
            rungs=("compile",),
            picture=Picture("function", ("graphs", "MB moved")),
        ),
        Lab(
            "offloading",
            "Activations that wait in host memory",
            seconds=3,
            library="torch.autograd.graph.save_on_cpu",
            rungs=("offload_activations", "offload_optimizer"),
            picture=Picture("sent", ("KiB on the device", "KiB sent")),
        ),
    ),
)
