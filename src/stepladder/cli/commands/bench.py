"""Measure the tables people quote, on this machine.

precision: time, speed-up, memory and loss difference of each number format. batch: memory and
throughput of each batch size, the best marked. recompute: memory and time of each way to
recompute. data: how fast batches arrive under each loader setting. kernels: hand-written kernels
against eager and compiled torch (needs a GPU). collectives: latency and bandwidth of every
collective over local ranks, or of those a --plan uses. ring: an all-reduce on sends and receives
alone against the backend's, its bytes counted, its steps drawn. dp: threads in one process against
DDP. zero: what a rank holds under DDP and ZeRO 1, 2, 3 beside theory. scaling: efficiency from one
rank to several, strong and weak. accumulation: one batch in more and more micro-batches.
compression: smaller gradients over links of several speeds (root, to make the links).
pipeline: the schedules on local ranks, idle time beside the formula's, the timeline drawn; a
pipeline beside DDP and ZeRO 3 on as many ranks.
learning-rate: loss curves of a larger batch under each scaling rule, with and without warm-up.
roofline: this device's measured peaks and bandwidth, operations of a step under them.
devices: one convolutional net on the same images on CPU, GPU and GPU with autocast (--data FOLDER
of MNIST's files; else digits drawn here).
compression-curves: loss over a training with smaller gradients, error feedback on and off.
matmul: one product from three loops to the library's, and copies between memories.
walls: a budget of memory, the speed of one rank, bytes between ranks, and what passes each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepladder.cli.results.bench_tables.communication_tables import (
    bench_collectives,
    bench_dp,
    bench_ring,
)
from stepladder.cli.results.bench_tables.curve_tables import (
    bench_compression_curves,
    bench_learning_rate,
)
from stepladder.cli.results.bench_tables.device_tables import bench_roofline
from stepladder.cli.results.bench_tables.image_tables import bench_devices
from stepladder.cli.results.bench_tables.matmul_table import bench_matmul
from stepladder.cli.results.bench_tables.pipeline_tables import bench_pipeline
from stepladder.cli.results.bench_tables.plan_tables import (
    bench_batch,
    bench_data,
    bench_kernels,
    bench_precision,
    bench_recompute,
)
from stepladder.cli.results.bench_tables.sharding_tables import (
    bench_accumulation,
    bench_compression,
    bench_scaling,
    bench_zero,
)
from stepladder.cli.results.bench_tables.wall_tables import bench_walls
from stepladder.cli.user_code_options import (
    MODEL,
    announce,
    configure_user_code,
    read_user_code,
)
from stepladder.errors import PlanError, StepladderError
from stepladder.plan.reference import Reference
from stepladder.workload.shape import FAMILIES

if TYPE_CHECKING:
    from stepladder.train.user_code.user_code import UserCode

TRAINED = ("precision", "batch", "recompute")
SHARED = ("zero", "scaling", "accumulation", "learning-rate")
LINKED = ("compression", "compression-curves", "walls", "pipeline")  # of a preset, on ranks
OWN = (*TRAINED, "data", *SHARED)
ON_RANKS = ("collectives", "ring", "dp", "zero", "scaling", *LINKED)
STEPPED = (*TRAINED, "collectives", "ring", "dp", *SHARED, *LINKED)
READERS = {
    "data": (*OWN, "devices"),
    "sample": OWN,
    "loss": (*TRAINED, *SHARED),
    "model": (*TRAINED, "data", "dp", *SHARED, *LINKED),
    "batch": (*TRAINED, "data", "dp", *SHARED, *LINKED, "devices"),
    "sequence": (*TRAINED, "data", "dp", *SHARED, *LINKED),
    "plan": (*TRAINED, "collectives", *SHARED, "devices"),
    "ranks": ON_RANKS,
    "steps": STEPPED,
    "budget": ("walls",),
    "largest": ("collectives", "ring"),
    "keep": ("collectives",),
    "optimizer": ("learning-rate", "compression-curves", "devices"),
    "epochs": ("devices",),
    "width": ("devices",),
    "times": ("learning-rate",),
    "seeds": ("learning-rate", "compression-curves"),
}
TOGETHER = ("zero", "pipeline", "walls", "compression-curves")  # what ranks send each other
ON_CPU = ("pipeline", "compression", "walls")  # ranks that share this machine's cores
STEPS = {"learning-rate": 64, "compression-curves": 150}  # of tables that need more than a few
USUAL_STEPS = 10


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=list(TABLES), help="which table")
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help=f"gpt-tiny on a CPU, gpt2 on a GPU; {MODEL}"
    )
    configure_user_code(parser)
    parser.add_argument("--batch", type=positive, help="samples a step (batch: the largest tried)")
    parser.add_argument("--sequence", type=positive, help="tokens a sample")
    parser.add_argument("--plan", default="", metavar="WORDS", help="what every row has in common")
    parser.add_argument(
        "--steps",
        type=positive,
        help="timed steps a row (10; learning-rate 64, compression-curves 150)",
    )
    parser.add_argument("--ranks", type=positive, help="local processes (2)")
    parser.add_argument(
        "--largest", type=positive, metavar="KIB", help="message: collectives, ring (65536)"
    )
    parser.add_argument(
        "--keep", action="store_true", help="let forecasts use the measured link: collectives"
    )
    parser.add_argument(
        "--budget", type=positive, metavar="MIB", help="a rank's memory: walls (2/3 of plain DDP's)"
    )
    parser.add_argument(
        "--times", type=positive, metavar="N", help="times the base batch: learning-rate (8)"
    )
    parser.add_argument(
        "--optimizer",
        metavar="WORDS",
        help="that trains: learning-rate (SGD and AdamW), compression-curves (SGD), devices",
    )
    parser.add_argument("--epochs", type=positive, help="times through the images: devices (2)")
    parser.add_argument("--width", type=positive, help="channels of the first layer: devices (32)")
    parser.add_argument(
        "--seeds", type=positive, help="first weights: learning-rate, compression-curves (3)"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the table too")
    parser.add_argument("--json", action="store_true")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return number


def run(options: argparse.Namespace) -> int:
    refuse_unread(options)
    if options.ranks == 1 and options.name in TOGETHER:
        raise PlanError("ranks", "1 rank has nobody to talk to", "Use 2 or more.")
    if options.name == "compression" and options.ranks not in (None, 2):
        problem = f"{options.ranks} ranks do not fit a link, which has one at each end"
        raise PlanError("ranks", problem, "Use 2, or leave it out.")
    if options.name in ON_CPU and options.device not in ("auto", "cpu"):
        problem = f"the table '{options.name}' runs on the CPU, not on '{options.device}'"
        raise PlanError("device", problem, "Leave it out.")
    options.steps = options.steps or STEPS.get(options.name, USUAL_STEPS)
    options.model = read_model(options)
    return TABLES[options.name](options)


def read_model(options: argparse.Namespace) -> UserCode | str | None:
    """The model's name, or the user's own code."""
    own = Reference.parse(options.model or "", taken=FAMILIES) is not None
    if own and options.name not in OWN:
        problem = f"the table '{options.name}' trains no model of your own"
        raise StepladderError("model", problem, f"Name a preset; these do: {', '.join(OWN)}.")
    if options.name == "devices" or not (own or options.data or options.sample or options.loss):
        return options.model
    named = read_user_code(options, options.model or "gpt-tiny")
    code = named.complete(loss=options.name != "data")
    announce(code.taken)
    return code


def refuse_unread(options: argparse.Namespace) -> None:
    """An option that the table would not read is a mistake about what is measured."""
    for option, readers in READERS.items():
        if getattr(options, option) and options.name not in readers:
            raise StepladderError(
                option if option == "model" else f"--{option}",
                f"the table '{options.name}' does not read it",
                f"Leave it out; these do: {', '.join(readers)}.",
            )


TABLES: dict[str, Callable[[argparse.Namespace], int]] = {
    "precision": bench_precision,
    "batch": bench_batch,
    "recompute": bench_recompute,
    "data": bench_data,
    "kernels": bench_kernels,
    "collectives": bench_collectives,
    "ring": bench_ring,
    "dp": bench_dp,
    "zero": bench_zero,
    "scaling": bench_scaling,
    "accumulation": bench_accumulation,
    "compression": bench_compression,
    "pipeline": bench_pipeline,
    "learning-rate": bench_learning_rate,
    "roofline": bench_roofline,
    "compression-curves": bench_compression_curves,
    "devices": bench_devices,
    "matmul": bench_matmul,
    "walls": bench_walls,
}
