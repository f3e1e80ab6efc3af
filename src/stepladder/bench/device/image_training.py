"""One convolutional net trained on the same images on CPU and GPU, with and without autocast.

Every row starts from the same weights and sees the same images in the same order, for as many
epochs. A row's time is that of the whole training, loading included, after a few steps of another
run have paid for kernels and caches. Memory is that of tensors at the peak of one further step.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stepladder.data import batches
from stepladder.data.images.drawn_digits import drawn_digits
from stepladder.data.images.image_datasets import mnist
from stepladder.data.images.image_folder import Pixels
from stepladder.errors import StepladderError
from stepladder.measure import measure_memory
from stepladder.rungs import is_out_of_memory
from stepladder.train import Run, climb
from stepladder.world import synchronize

ROWS = (("cpu", "fp32"), ("cpu", "bf16"), ("cuda", "fp32"), ("cuda", "bf16"), ("cuda", "fp16"))
NAMES = {"cpu": "CPU", "cuda": "GPU"}
NO_GPU = "no GPU here"
DRAWN = (12_000, 2_000)  # digits to train on and to be judged by, where there are no files
WARMUP_STEPS = 3
JUDGED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class ImageTask:
    """What every row trains."""

    name: str
    train: Pixels
    test: Pixels
    batch: int = 256
    epochs: int = 2
    width: int = 32
    words: str = ""  # what every plan has in common
    optimizer: str = "adamw lr=2e-3"

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        return small_net(self.width)

    @property
    def steps(self) -> int:
        return self.epochs * (len(self.train) // self.batch)


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device and precision; `problem` says why it has no figures."""

    device: str
    precision: str
    seconds: float | None = None
    images_per_second: float | None = None
    peak_bytes: int | None = None
    accuracy: float | None = None  # on images that nothing was trained on
    loss: float | None = None  # of the last step
    mfu: float | None = None  # model FLOPs over the device's peak; None: that is not known
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{NAMES[self.device]} {self.precision}"


def image_task(folder: str | None, **given: Any) -> ImageTask:
    """MNIST from a folder with its four files, else digits that are drawn here."""
    if folder:
        root = folder.removeprefix("mnist:")
        name = f"MNIST in {Path(root).name}"
        return ImageTask(name, mnist(root), mnist(root, split="validation"), **given)
    train, test = (drawn_digits(count, seed=seed) for seed, count in enumerate(DRAWN))
    return ImageTask(f"{DRAWN[0]:,} drawn digits", train, test, **given)


def small_net(width: int) -> nn.Module:
    """Four convolutions and a linear layer, for pictures of one channel."""
    widths = ((1, width), (width, width), (width, 2 * width), (2 * width, 2 * width))
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
        layers += [nn.ReLU(), *([nn.MaxPool2d(2)] * (index < 2))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def measure_devices(task: ImageTask, *, gpu: bool) -> Iterator[DeviceRow]:
    """One row for each device and precision, as each is done.

    Args:
        gpu: whether there is one to train on; without it its rows say so.
    """
    for device, precision in ROWS:
        row = DeviceRow(device, precision)
        if device == "cuda" and not gpu:
            yield replace(row, problem=NO_GPU)
            continue
        try:
            yield measure_device(task, row)
        except Exception as error:
            if not (isinstance(error, StepladderError) or is_out_of_memory(error)):
                raise
            yield replace(row, problem=str(error).splitlines()[0])


def measure_device(task: ImageTask, row: DeviceRow) -> DeviceRow:
    train(start(task, row), task, min(WARMUP_STEPS, task.steps))
    drop_earlier_runs()
    run = start(task, row)
    device = run.world.device
    synchronize(device)
    began = time.perf_counter()
    loss = train(run, task, task.steps)
    synchronize(device)
    seconds = time.perf_counter() - began
    accuracy = judge(run, task.test)
    with batches(task.train, size=task.batch, stop=task.batch, workers=0, device=device) as feed:
        batch = next(iter(feed))
    mfu = run.flops.over(seconds / task.steps, batch).mfu
    run.step(batch).read()
    held = measure_memory(lambda: run.step(batch).read(), run.module, run.optimizer, device)
    rate = task.steps * task.batch / seconds
    return replace(
        row, seconds=seconds, images_per_second=rate, peak_bytes=held.allocated_bytes,
        accuracy=accuracy, loss=loss, mfu=mfu,
    )  # fmt: skip


def drop_earlier_runs() -> None:
    """Runs lie in circles of references: on a GPU their tensors would be counted as this one's."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def start(task: ImageTask, row: DeviceRow) -> Run:
    """The same net, by the same plan but for its precision."""
    plan = f"{row.precision} {task.words}".strip()
    return climb(
        task.make(), loss="cross_entropy", optimizer=task.optimizer, plan=plan, device=row.device,
        seed=0,
    )  # fmt: skip


def train(run: Run, task: ImageTask, steps: int) -> float:
    """So many steps from the first image on; the last one's loss."""
    device = run.world.device
    with batches(task.train, size=task.batch, stop=steps * task.batch, device=device) as feed:
        for batch in feed:
            report = run.step(batch)
    return report.loss


def judge(run: Run, images: Pixels) -> float:
    """The share of pictures whose digit has the largest logit."""
    parts = [np.arange(at, min(at + JUDGED_AT_ONCE, len(images)))
             for at in range(0, len(images), JUDGED_AT_ONCE)]  # fmt: skip
    logits = run.predict([images.fetch(part) for part in parts])
    return (logits.argmax(1) == images.labels).float().mean().item()
