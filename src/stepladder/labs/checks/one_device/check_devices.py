"""Checks of devices. The meta device is a second device that every machine has."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.labs.grading.check_words import Mistake, expect, written
from stepladder.world import pick_device

MISTAKES = (
    Mistake(
        "the clock is stopped before the device has finished",
        "    queue.launch(work)\n    queue.synchronize()\n",
        "    queue.launch(work)\n",
        "you timed the queueing",
    ),
    Mistake(
        "the clock is started while earlier work still runs",
        "    queue.synchronize()\n    start = clock()\n",
        "    start = clock()\n",
        "earlier work is timed too",
    ),
    Mistake(
        "tensors inside lists stay behind",
        "    if isinstance(batch, list | tuple):\n        return type(batch)(move(value, device) "
        "for value in batch)\n",
        "",
        "inside a list stayed on",
    ),
    Mistake(
        "the tensor that `to` returns is thrown away",
        "        return batch.to(device)\n",
        "        batch.to(device)\n        return batch\n",
        "`to` returns another tensor",
    ),
    Mistake(
        "a GPU is asked for by number that is not there",
        'if wanted < num_cuda else "cuda:0"',
        'if num_cuda else "cuda:0"',
        "this machine has 2",
    ),
)
META = torch.device("meta")


def check_fallback(lesson: ModuleType) -> None:
    """A GPU that is not there is fallen back from, as stepladder.world.pick_device does."""
    for wanted, num_cuda, right in ((0, 0, "cpu"), (3, 0, "cpu"), (1, 2, "cuda:1")):
        found = written(lesson.best_device(wanted, num_cuda), "best_device")
        expect(found == right, f"GPU {wanted} of {num_cuda}: {found}, expected {right}.")
    found = lesson.best_device(5, 2)
    expect(found == "cuda:0", f"{found} asked for and this machine has 2: fall back to cuda:0.")
    here = lesson.best_device(0, torch.cuda.device_count())
    expect(torch.device(here) == pick_device("auto"), f"{here}; pick_device has another.")


def check_moving(lesson: ModuleType) -> None:
    """Every tensor of a batch moves, and the batch keeps its shape and its words."""
    one = torch.zeros(2)
    moved = lesson.move(one, META)
    expect(moved.device == META, "a tensor stayed: `to` returns another tensor, use that one.")
    batch = {"x": torch.zeros(2), "pair": (torch.zeros(1), [torch.ones(3)]), "name": "digits"}
    moved = written(lesson.move(batch, META), "move")
    expect(moved["x"].device == META, "the tensor in a dict stayed on the CPU.")
    expect(isinstance(moved["pair"], tuple), f"a tuple became a {type(moved['pair']).__name__}.")
    inner = (moved["pair"][0], moved["pair"][1][0])
    expect(all(t.device == META for t in inner), "a tensor inside a list stayed on the CPU.")
    expect(moved["name"] == "digits", "what is no tensor must stay as it is.")
    expect(batch["x"].device.type == "cpu", "the batch that was given has changed.")  # type: ignore[attr-defined]


def check_strays(lesson: ModuleType) -> None:
    """What is on another device is named before a product fails, buffers included."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    expect(lesson.strays(model, torch.device("cpu")) == [], "nothing strays, and you name some.")
    model[0].to(META)
    model[1].running_mean = torch.zeros(2, device=META)
    found = written(lesson.strays(model, torch.device("cpu")), "strays")
    expect("1.running_mean" in found, "a buffer strayed and was not named: named_buffers().")
    wanted = ["0.bias", "0.weight", "1.running_mean"]
    expect(sorted(found) == wanted, f"named {sorted(found)}, and {wanted} stray.")


class Recorder:
    """A device and a clock that write down who was called: exact on any machine."""

    def __init__(self) -> None:
        self.now, self.pending = 0.0, 100.0  # earlier work is still queued
        self.done: list[str] = []

    def launch(self, work: Callable[[], Any]) -> None:
        work()
        self.pending += 7.0
        self.now += 0.001

    def synchronize(self) -> None:
        self.now, self.pending = self.now + self.pending, 0.0

    def clock(self) -> float:
        return self.now


def check_timing(lesson: ModuleType) -> None:
    """The clock counts the work, from its start to its end: 7.001 seconds on our device."""
    device, results = Recorder(), list[Tensor]()
    found = lesson.timed(device, lambda: results.append(torch.ones(1)), device.clock)
    written(found, "timed")
    expect(len(results) == 1, f"the work was launched {len(results)} times.")
    expect(found > 1, f"{found:.3f} s: you timed the queueing. Wait before the clock stops.")
    expect(found < 100, f"{found:.3f} s: earlier work is timed too. Wait before the clock starts.")
    expect(abs(found - 7.001) < 1e-6, f"{found:.3f} s, and the work took 7.001.")
    expect(len(lesson.measure()) == 3, "measure gives three rows.")
