"""Checks of pipeline against data parallel: stages run turn by turn, bytes that ranks really send.

Expected seconds and memory come from a schedule that is played, not from a formula.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times, written
from stepladder.measure import Traffic
from stepladder.plan import Schedule
from stepladder.planner import bubble_share

MISTAKES = (
    Mistake(
        "the bubble is left out",
        "(job.micro_batches + devices - 1) * job.seconds / devices",
        "job.micro_batches * job.seconds / devices",
        "stages wait while the first micro-batch comes and the last one leaves",
    ),
    Mistake(
        "a stage in the middle is taken to send in one direction only",
        "directions = 2 if devices > 2 else 1",
        "directions = 1",
        "a stage in the middle sends activations on and gradients back",
    ),
    Mistake(
        "every micro-batch's activations are kept",
        "on_their_way = min(devices, job.micro_batches)",
        "on_their_way = job.micro_batches",
        "1F1B lets go of a micro-batch before it takes a new one",
    ),
    Mistake(
        "the fastest way is chosen though it does not fit",
        "[way for way in ways if way.kept_bytes <= device_bytes]",
        "list(ways)",
        "does not fit",
    ),
)
CASES = ((2, 1), (2, 8), (4, 16), (8, 4))  # devices, micro-batches


def play(stages: int, micro_batches: int) -> tuple[int, int]:
    """Turns until 1F1B is over, a forward with its backward counting 3; most kept on stage 0."""
    done: dict[tuple[str, int, int], int] = {}
    orders = []
    for stage in range(stages):
        warm = min(stages - stage, micro_batches)
        order = [("F", one) for one in range(warm)]
        for one in range(micro_batches):
            order += [("B", one)] + [("F", warm + one)] * (warm + one < micro_batches)
        orders.append(order)
    open_ones = [sum(1 if kind == "F" else -1 for kind, _ in orders[0][: turn + 1])
                 for turn in range(2 * micro_batches)]  # fmt: skip
    now = [0] * stages
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, one = order[0]
                needs = ("F", stage - 1, one) if kind == "F" else ("B", stage + 1, one)
                if not 0 <= needs[1] < stages:
                    needs = (kind, stage, one) if kind == "F" else ("F", stage, one)
                if needs not in done and not (kind == "F" and stage == 0):
                    break
                now[stage] = max(now[stage], done.get(needs, 0)) + (1 if kind == "F" else 2)
                done[kind, stage, one] = now[stage]
                order.pop(0)
    return max(now), max(open_ones)


def check_the_seconds(lesson: ModuleType) -> None:
    """A pipeline computes as long as its schedule, played turn by turn, takes."""
    for devices, micro in CASES:
        job = lesson.Job(micro_batches=micro, seconds=3.0)
        found = written(lesson.pipeline(job, devices).computes, "computes")
        turns, _ = play(devices, micro)
        about = f"{devices} stages and {micro} micro-batches of 3 s"
        expect(
            not is_times(found, 3.0 * micro / devices, 1),
            f"{about}: {found:g} s, as if no stage waited: stages wait while the first micro-batch "
            "comes and the last one leaves.",
        )
        expect_close(found, turns / devices, f"seconds of {about}")
        idle = bubble_share(Schedule.parse("1f1b"), devices)
        expect_close(found, (micro + idle) * 3.0 / devices, f"the planner's seconds of {about}")


def send_as_a_pipeline(micro: int, numbers: int) -> float:
    """Pass activations on and gradients back; the bytes that this rank has sent."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    message = torch.zeros(numbers)
    with Traffic() as traffic:
        for _ in range(micro):
            if rank > 0:
                dist.recv(message, rank - 1)
            if rank < last:
                dist.send(message, rank + 1)
        for _ in range(micro):
            if rank < last:
                dist.recv(message, rank + 1)
            if rank > 0:
                dist.send(message, rank - 1)
    return float(traffic.bytes["send"])


def average_gradients(numbers: int) -> float:
    with Traffic() as traffic:
        dist.all_reduce(torch.zeros(numbers))
    return traffic.sent_bytes


def check_the_bytes_sent(lesson: ModuleType) -> None:
    """What ranks really send, as a pipeline and with gradients averaged, is what you say."""
    for devices in (2, 3):
        job = lesson.Job(micro_batches=4, message_bytes=4.0 * 100, gradient_bytes=4.0 * 600)
        found = written(lesson.pipeline(job, devices).sent_bytes, "sent")
        wanted = max(on_ranks(send_as_a_pipeline, devices, 4, 100))
        expect(
            devices == 2 or not is_times(found, wanted, 0.5),
            f"{devices} stages, 4 messages of 400 bytes: {found:g} bytes; a stage in the middle "
            "sends activations on and gradients back.",
        )
        expect_close(found, wanted, f"bytes that one of {devices} stages sends", rtol=0)
        gradients = lesson.data_parallel(job, devices).sent_bytes
        expect_close(gradients, on_ranks(average_gradients, devices, 600)[0], "gradients sent")


def check_the_memory(lesson: ModuleType) -> None:
    """A stage keeps its part of the state, and activations of what is on its way."""
    for devices, micro in CASES:
        job: Any = lesson.Job(micro_batches=micro)
        found = written(lesson.pipeline(job, devices).kept_bytes, "kept")
        kept = play(devices, micro)[1]
        state, activations = job.state_bytes / devices, job.activation_bytes / devices
        about = f"{devices} stages and {micro} micro-batches"
        expect(
            micro <= devices or not is_times(found, state + micro * activations, 1),
            f"{about}: you keep {micro} micro-batches; 1F1B lets go of a micro-batch before it "
            "takes a new one.",
        )
        expect(
            not is_times(found, job.state_bytes + kept * activations, 1),
            f"{about}: a stage keeps the state of its own layers only.",
        )
        expect_close(found, state + kept * activations, f"bytes kept with {about}")


def check_the_choice(lesson: ModuleType) -> None:
    """The fastest way that fits: the network and the memory decide."""
    fast, small = lesson.Way("fast", 1.0, 4e9, 50e9), lesson.Way("small", 2.0, 1e9, 20e9)
    for rate, room, wanted in (
        (100e9, 80e9, "fast"),
        (1e9, 80e9, "small"),
        (100e9, 40e9, "small"),
        (100e9, 10e9, "none"),
    ):
        found = written(lesson.choose([fast, small], rate, room), "choose")
        about = f"ways of 50 and 20 GB on a device of {room / 1e9:g} GB"
        expect(
            {"fast": 50e9, "small": 20e9}.get(found, 0) <= room,
            f"{about}: you choose '{found}', which does not fit.",
        )
        expect(found == wanted, f"{about} at {rate / 1e9:g} GB/s: {wanted}, not {found}.")
