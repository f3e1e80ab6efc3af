"""Pipeline or data parallel? The same devices, two ways to use them.

A step is a number of micro-batches, each of which takes some seconds on one device. Data parallel:
every device has the whole model and an equal part of the micro-batches, and gradients are averaged
at the end. Pipeline (here 1F1B): every device has a part of the layers, and all micro-batches pass
through every device.

    bubble    a stage has nothing to do while the first micro-batch is on its way to it and while
              the last one is on its way back: p - 1 turns of p stages, whatever the number of
              micro-batches. Data parallel has none
    traffic   data parallel sends gradients, as large as the model. A pipeline sends activations
              to the next stage and their gradients back to the one before, for every micro-batch
    memory    data parallel keeps the whole state. A pipeline keeps its part of it, and the
              activations of the micro-batches that are on their way

Claim: on four devices with 16 micro-batches the pipeline computes 19 % longer, as
stepladder.planner.bubble_share says, and sends little more than a quarter of data parallel's bytes;
so it is faster on a 10 Gb/s network and slower on NVLink. Ranks over gloo really send so much.

Predict: A micro-batch takes one second on one device, and a step has 16 of them. How many seconds
does it compute on a pipeline of four devices? [computes; way = pipeline]

Often wrong:
- the bubble is left out
- a stage in the middle is taken to send in one direction only
- every micro-batch's activations are kept
- the fastest way is chosen though it does not fit
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINKS = {"10 Gb/s": 10e9 / 8, "NVLink": 450e9}  # bytes a second of each device


@dataclass(frozen=True)
class Job:
    """A step: micro-batches of a model, of which one device computes each in so many seconds."""

    micro_batches: int = 16
    seconds: float = 1.0  # of one micro-batch, on one device that has the whole model
    gradient_bytes: float = 2.6e9  # 1.3 billion parameters in bf16
    state_bytes: float = 20.8e9  # 16 bytes a parameter
    activation_bytes: float = 24e9  # of one micro-batch, in all layers
    message_bytes: float = 4 * 2048 * 2048 * 2.0  # of one micro-batch, between two layers


@dataclass(frozen=True)
class Way:
    """What one device does, sends and keeps in a step."""

    name: str
    computes: float  # seconds, the bubble among them
    sent_bytes: float  # of the device that sends most
    kept_bytes: float

    def seconds(self, rate: float) -> float:
        """With nothing hidden behind anything, over links of so many bytes a second."""
        return self.computes + self.sent_bytes / rate


def data_parallel(job: Job, devices: int) -> Way:
    """The whole model on every device; a ring averages the gradients."""
    computes = job.micro_batches / devices * job.seconds
    sent = 2 * (devices - 1) / devices * job.gradient_bytes
    return Way("data parallel", computes, sent, job.state_bytes + job.activation_bytes)


def pipeline(job: Job, devices: int) -> Way:
    """A part of the layers on every device, one stage each."""
    # >>> Seconds until the last stage is done with all micro-batches, both directions.
    # ??? How long does one micro-batch take on one stage, which has a part of the layers?
    # ??? The last stage's first turn comes after how many others? Then it has a turn for each
    # ???   micro-batch.
    computes = (job.micro_batches + devices - 1) * job.seconds / devices
    # <<< computes = ...
    # >>> Bytes that the stage sends which sends most.
    # ??? The first stage sends to the second. To whom does the second of four stages send?
    # ??? Two stages have no middle.
    directions = 2 if devices > 2 else 1
    sent = directions * job.micro_batches * job.message_bytes
    # <<< sent = ...
    # >>> Bytes that the first stage keeps: state, and activations of what is on its way.
    # ??? 1F1B: once the pipeline is full, every forward is followed by a backward. How many
    # ???   micro-batches are between the first stage's forward and its backward of them?
    # ??? There may be fewer micro-batches than stages.
    # ??? One stage has its layers' part of a micro-batch's activations.
    on_their_way = min(devices, job.micro_batches)
    kept = (job.state_bytes + on_their_way * job.activation_bytes) / devices
    # <<< kept = ...
    return Way("pipeline", computes, sent, kept)


def choose(ways: list[Way], rate: float, device_bytes: float) -> str:
    """The name of the way to take; "none" where there is none."""
    # >>> The fastest of the ways that fit.
    # ??? Which ways are out of the question, however fast they are?
    # ??? min takes a key, and a default for when nothing is left.
    fitting = [way for way in ways if way.kept_bytes <= device_bytes]
    best = min(fitting, key=lambda way: way.seconds(rate), default=None)
    return best.name if best else "none"
    # <<< return ways[0].name


def measure() -> list[dict[str, Any]]:
    ways, rows = [data_parallel(Job(), 4), pipeline(Job(), 4)], []
    for link, rate in LINKS.items():
        for way in ways:
            row = {"way": way.name, "link": link, "computes": way.computes}
            row |= {"seconds": way.seconds(rate), "GB sent": way.sent_bytes / 1e9}
            row |= {"GB kept": way.kept_bytes / 1e9, "chosen, 80 GB": choose(ways, rate, 80e9)}
            rows.append({**row, "chosen, 40 GB": choose(ways, rate, 40e9)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
