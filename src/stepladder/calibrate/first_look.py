"""The first look at a machine: a few seconds of probes, kept, so that no forecast is "unknown".

`stepladder calibrate` takes a minute and a half and measures every type and way of running. This
takes ten seconds at most, once for a device and its user: the first training, `plan --on here` or
plan="auto" on a machine takes it by itself. What it has no time for keeps the planner's default,
and the long form replaces it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from stepladder.record import Calibration, calibration_path, load_calibration
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.world import Place, pick_device

from .calibrate import calibrate, device_name
from .probe import Probe
from .probes import probes_of

SECONDS = 6.0  # of probes: the last one may be long, and setting up takes a second or two
SWITCH = "STEPLADDER_PROBE"  # off: nothing is measured unasked
# In the order of what a forecast cannot do without; the last train a model of ours.
KINDS = (
    "stream", "product", "update", "attention", "norm", "activation", "loss", "widen", "turn",
    "spread", "launch", "launch llama", "ask for an update", "step", "convolution", "channel",
    "group", "pool",
)  # fmt: skip
TRAINING = ("launch", "launch llama", "ask for an update", "step")
COMPUTES = {"cpu": ("", "fp32", "bf16"), "cuda": ("", "bf16", "tf32", "fp32", "fp16")}
WAYS = ("", "pure")  # of running a tiny model: the rest are kept apart by the long form
LARGEST = {"cpu": 2**22, "cuda": 2**26}  # elements of what is streamed or updated

MEASURED: dict[str, Calibration] = {}  # in this process, where nothing could be kept


def speeds_here(device: torch.device | None = None) -> Calibration | None:
    """This user's calibration of this machine's device; where there is none, a short one, kept.

    None where measuring is switched off, and on a processor that several ranks share: what one
    of them measures with a part of the cores is not what the machine can do.
    """
    device = device or pick_device("auto")
    name = device_name(device)
    if known := load_calibration(name) or MEASURED.get(name):
        return known
    alone = Place.from_environment().num_ranks == 1
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no") or not (
        alone or device.type == "cuda"
    ):
        return None
    folder = calibration_path(name).parent
    kept = can_keep(name)
    where = f"kept in {folder}" if kept else f"not kept, as {folder} cannot be written"
    say(f"Measuring {name} for the first time, at most 10 s, {where}; {SWITCH}=off leaves it out.")
    with untouched(device):  # inputs are random, and the user's seeds are the user's
        probes = list(first_probes(device, training=alone))
        found = calibrate(device, SECONDS, probes=probes)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the run's own peak is reported later
    if not found.matrix_flops_per_second:
        return None  # this device can do none of it: what follows says so better
    MEASURED[name] = found
    if kept:
        found.save(calibration_path(name))
    return found


def can_keep(name: str) -> bool:
    """Whether this user has a cache folder that can be written."""
    folder = calibration_path(name).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def first_probes(device: torch.device, *, training: bool = True) -> Iterator[Probe]:
    """The long form's probes that forecasts need most, the most telling first.

    Args:
        training: whether tiny models are trained; not where they would meet other ranks.
    """
    computes, largest = COMPUTES[device.type], LARGEST[device.type]
    seen = set()
    for probe in probes_of(device):
        if probe.kind in ("stream", "update"):
            probe = replace(probe, shape=(min(probe.shape[0], largest),))
        ways = WAYS if probe.kind in TRAINING and probe.kind != "step" else computes
        wanted = training or probe.kind not in TRAINING
        if wanted and probe.kind in KINDS and probe.compute in ways:
            seen.add(probe)
    yield from sorted(seen, key=lambda probe: order(probe, computes))


def order(probe: Probe, computes: tuple[str, ...]) -> tuple[int, int, int]:
    """First what the usual type needs, then other types; of each kind the smallest shapes first."""
    usual = probe.compute in (*computes[:2], *WAYS)
    return (0 if usual else 1), KINDS.index(probe.kind), math.prod(probe.shape)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
