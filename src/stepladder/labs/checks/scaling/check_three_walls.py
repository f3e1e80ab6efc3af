"""Checks of scaling: efficiencies of worked examples, steps put together piece by piece, walls."""

from __future__ import annotations

import math
from types import ModuleType

import stepladder
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written

MISTAKES = (
    Mistake(
        "strong scaling is judged without the number of devices",
        "return one / (ranks * many)",
        "return one / many",
        "that is the speed-up",
    ),
    Mistake(
        "the serial part is divided, too",
        "1 / (serial + (1 - serial) / ranks)",
        "1 / ((serial + 1 - serial) / ranks)",
        "the serial part takes as long on any number of devices",
    ),
    Mistake(
        "what the efficiency lacks is taken for the serial share",
        "(1 / speedup - 1 / ranks) / (1 - 1 / ranks)",
        "1 - speedup / ranks",
        "what the efficiency lacks grows with the number of devices",
    ),
    Mistake(
        "a plan that does not fit is called slow",
        "if needed > memory:",
        "if needed < 0:",
        "what does not fit does not run",
    ),
)


def check_strong_scaling(lesson: ModuleType) -> None:
    """Strong scaling is judged by the speed-up over the number of devices."""
    for one, many, ranks, wanted in ((10.0, 2.5, 4, 1.0), (10.0, 4.0, 5, 0.5), (8.0, 2.0, 8, 0.5)):
        found = written(lesson.strong_efficiency(one, many, ranks), "strong_efficiency")
        about = f"{one:g} s on one device and {many:g} s on {ranks}"
        expect(
            not is_times(found, one / many, 1),
            f"{about}: {found:g}; that is the speed-up, and {ranks} devices should have more.",
        )
        expect_close(found, wanted, f"the efficiency of {about}")


def seconds(serial: float, ranks: int) -> float:
    """A step of a thousand pieces of work, some of which only the first device does."""
    pieces = 1000
    alone = round(serial * pieces)
    return (alone + math.ceil((pieces - alone) / ranks)) / pieces


def check_amdahl(lesson: ModuleType) -> None:
    """The serial share takes as long on any number of devices."""
    for serial, ranks in ((0.2, 4), (0.5, 10), (0.0, 8), (1.0, 8)):
        found = written(lesson.amdahl(serial, ranks), "amdahl")
        about = f"the speed-up on {ranks} devices with {serial:.0%} serial"
        expect(
            serial == 0 or not is_times(found, ranks, 1),
            f"{about} is {found:g} by your formula: the serial part takes as long on any number of "
            "devices.",
        )
        expect_close(found, 1 / seconds(serial, ranks), about)


def check_the_serial_share(lesson: ModuleType) -> None:
    """From a speed-up follows the serial share, the same for any number of devices."""
    for serial, ranks in ((0.2, 4), (0.2, 8), (0.5, 2)):
        speedup = 1 / seconds(serial, ranks)
        found = written(lesson.serial_share(speedup, ranks), "serial_share")
        lacks = 1 - speedup / ranks
        expect(
            not is_times(found, lacks, 1),
            f"{found:.3g} from a speed-up of {speedup:.3g} on {ranks} devices: what the efficiency "
            "lacks grows with the number of devices, a serial share does not.",
        )
        expect_close(found, serial, f"the serial share behind {speedup:.3g} on {ranks} devices")


def check_the_wall(lesson: ModuleType) -> None:
    """Memory first, then the longer of the two times."""
    cases = (
        ((90, 80, 1.0, 0.1), "memory"),
        ((90, 80, 0.1, 1.0), "memory"),
        ((70, 80, 1.0, 0.1), "compute"),
        ((70, 80, 0.1, 1.0), "communication"),
    )
    for (needed, memory, compute, communication), wanted in cases:
        found = written(lesson.wall(needed, memory, compute, communication), "wall")
        about = (
            f"{needed} of {memory} GB, {compute:g} s of arithmetic and {communication:g} s of "
            "communication"
        )
        expect(
            found == wanted or wanted != "memory",
            f"{about}: you call it {found}; what does not fit does not run.",
        )
        expect(found == wanted, f"{about}: the wall is {wanted}, not {found}.")


def check_the_forecasts(lesson: ModuleType) -> None:
    """The planner's steps stand at the walls that they should, with their efficiencies."""
    rows = {(row["scaling"], row["devices"]): row for row in lesson.measure()}
    for case, wanted in (
        (("DDP", 8), "memory"),
        (("weak, 3,200 Gb/s", 1024), "compute"),
        (("weak, 100 Gb/s", 1024), "communication"),
    ):
        expect(rows[case]["wall"] == wanted, f"{case[0]} on {case[1]} devices: {wanted}.")
    plan = "bf16 zero3 micro=1 recompute=selective compile=on"
    rates = [
        stepladder.forecast(
            "llama3-8b", f"{plan} batch={n}", f"{n // 8} nodes x 8 H100-80GB, 3200 Gb/s"
        ).tokens_per_second_per_device
        for n in (8, 1024)
    ]
    assert rates[0] is not None and rates[1] is not None
    found = rows["weak, 3,200 Gb/s", 1024]["efficiency"]
    expect_close(found, rates[1] / rates[0], "efficiency beside tokens per second and device")
