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
from contextlib import contextmanager
from dataclasses import replace

import psutil
import torch

from stepladder.hardware import find_device
from stepladder.hardware.device_table import is_known_device
from stepladder.record import Calibration, calibration_path, load_calibration
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.world import Place, pick_device

from .calibrate import calibrate, device_name
from .other_programs import ProcessorTime
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
NAMES = {"stream": "copy in memory", "product": "matrix product"}
REPEATED, REPEATS = tuple(NAMES), 4  # probes that are timed again
LEAST_SHARE = 0.5  # of the datasheet's bandwidth, that a copy on a free device reaches
MOST_APART = 1.4  # times that a quiet machine is apart; beyond it, it is not

MEASURED: dict[str, Calibration] = {}  # in this process, where nothing could be kept


def speeds_here(
    device: torch.device | None = None, ranks: int = 1, *, others_wait: bool = False
) -> Calibration | None:
    """This user's calibration of this machine's device; where there is none, a short one, kept.

    One that is taken while the machine is busy serves this process and is not kept. None where
    measuring is switched off, and in one of several ranks on a processor that measure at once.

    Args:
        ranks: that share the device, if it is a processor.
        others_wait: the other ranks wait for this one, which has all cores.
    """
    device = device or pick_device("auto")
    found = speeds_alone(device, others_wait)
    return found.shared_by(ranks) if found and device.type == "cpu" else found


def speeds_alone(device: torch.device, others_wait: bool) -> Calibration | None:
    name = device_name(device)
    if known := load_calibration(name) or MEASURED.get(name):
        return known
    alone = Place.from_environment().num_ranks == 1
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no") or not (
        alone or others_wait or device.type == "cuda"
    ):
        return None
    folder, hindrance = calibration_path(name).parent, why_not_kept(name)
    where = f"not kept, as {hindrance}" if hindrance else f"kept in {folder}"
    say(f"Measuring {name} for the first time, at most 10 s, {where}; {SWITCH}=off leaves it out.")
    with untouched(device), all_cores(device):  # inputs are random, and seeds are the user's
        began, probes = ProcessorTime(), list(first_probes(device, training=alone))
        found = calibrate(device, SECONDS, probes=probes)
        doubt = slowness(found) or began.others_since() or disagreement(found, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # the run's own peak is reported later
    if not found.matrix_flops_per_second:
        return None  # this device can do none of it: what follows says so better
    MEASURED[name] = found
    if doubt and not hindrance:
        say(f"Not kept: {doubt}. It is measured again next time.")
    elif not hindrance:
        found.save(calibration_path(name))
    return found


@contextmanager
def all_cores(device: torch.device) -> Iterator[None]:
    """As many threads as there are cores, where a launcher gave a rank a part of them."""
    threads, ranks = torch.get_num_threads(), Place.from_environment().num_ranks
    if device.type == "cpu" and ranks > 1:
        torch.set_num_threads(max(threads, psutil.cpu_count(logical=False) or 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def why_not_kept(name: str) -> str:
    """What hinders a first look from being kept: the cache folder, or a busy machine."""
    folder = calibration_path(name).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        return f"{folder} cannot be written"
    load, cores = load_and_cores()
    if load > cores:
        return f"the machine is busy (load {load:.1f} on {cores} cores): once more next time"
    return ""


def load_and_cores() -> tuple[float, int]:
    """Programs that run or want to, over the last minute; 0 where the system does not tell."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return load, os.cpu_count() or 1


def slowness(found: Calibration) -> str:
    """What shows that others use a listed device: it reaches a small part of its datasheet."""
    card = find_device(found.device) if is_known_device(found.device) else None
    listed = card.bandwidth_bytes_per_second if card else None
    reached = found.bandwidth_bytes_per_second
    if not listed or not reached or reached > LEAST_SHARE * listed:
        return ""
    return (
        f"{found.device} copied at {reached / 1e9:,.0f} GB/s and its datasheet says "
        f"{listed / 1e9:,.0f}, so others are using it"
    )


def disagreement(found: Calibration, device: torch.device) -> str:
    """What shows that others use the machine: its first probes, timed again, take other times."""
    first = [t for t in found.timings if t.kind in REPEATED][:REPEATS]
    if not first:
        return ""
    probes = [Probe(t.kind, t.compute, t.shape) for t in first]
    again = {(t.kind, t.compute, t.shape): t for t in calibrate(device, 1.0, probes=probes).timings}
    for before in first:
        after = again.get((before.kind, before.compute, before.shape))
        if after is None:
            continue
        times = max(after.seconds / before.seconds, before.seconds / after.seconds)
        if times > MOST_APART:
            what = f"the same {NAMES[before.kind]} took {times:.1f} times as long"
            return f"{what} a few seconds apart, so the machine is busy"
    return ""


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
