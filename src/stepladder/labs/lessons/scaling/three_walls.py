"""Strong and weak scaling, Amdahl's law, and the three walls: memory, compute, communication.

Two questions have the name of scaling. Strong scaling: the batch stays as it is, and N devices
should take an Nth of the time. Weak scaling: each device keeps its work, and the step should take
as long as before. Efficiency is what the time should be, over what it is.

Amdahl's law: if a share of a step's work cannot be divided, that share takes as long on any number
of devices, and limits what all the others can gain. From two measured times the share can be
computed (Karp and Flatt, 1990); where it grows with the number of devices it is no serial work but
communication.

Before more devices are bought, ask which wall the run stands at:

    memory          the state or the activations do not fit: shard, recompute, a smaller micro-batch
    communication   devices wait for each other longer than they compute: a larger batch, faster
                    links, fewer ranks that talk
    compute         most of the step is arithmetic: only here do more or faster devices help

Claim: stepladder.forecast shows all three for one model of eight billion parameters. DDP does not
fit 80 GB; ZeRO 3 on 8 to 1,024 H100 keeps 86 % in weak scaling and is bound by compute; with
100 Gb/s between nodes it is bound by communication, and keeps less than 15 %.

Predict: 5 % of a step cannot be divided. How many times as fast is it on 64 devices?
[speed-up; scaling = Amdahl, 5 % serial; devices = 64]

Often wrong:
- strong scaling is judged without the number of devices
- the serial part is divided, too
- what the efficiency lacks is taken for the serial share
- a plan that does not fit is called slow
"""

from __future__ import annotations

from typing import Any

import stepladder

GIB = 2**30
NETWORKS = {"3,200 Gb/s": "3200 Gb/s", "100 Gb/s": "100 Gb/s"}  # of a node of eight


def strong_efficiency(one: float, many: float, ranks: int) -> float:
    """Of `ranks` times the devices, which do the same work in `many` seconds instead of `one`."""
    # >>> The time that it should take, over the time that it takes.
    # ??? Ten seconds on one device: how many should it be on four?
    # ??? The efficiency is 1 if it takes just so long, and below 1 if it takes longer.
    return one / (ranks * many)
    # <<< return ...  # type: ignore[return-value]


def weak_efficiency(one: float, many: float) -> float:
    """Of more devices, each with the work that one had in `one` seconds."""
    return one / many


def amdahl(serial: float, ranks: int) -> float:
    """The speed-up on so many devices if a share of the work is serial."""
    # >>> The time on one device, over the time on all of them.
    # ??? Let the step take 1 second on one device. How much of that is left as it was?
    # ??? And what becomes of the rest?
    # ??? With infinitely many devices the speed-up is 1 over the serial share.
    return 1 / (serial + (1 - serial) / ranks)
    # <<< return ...  # type: ignore[return-value]


def serial_share(speedup: float, ranks: int) -> float:
    """The share of the work that is serial, if Amdahl's law explains the speed-up."""
    # >>> Amdahl's law, solved for the serial share.
    # ??? Write the law down with the speed-up's inverse on the left: what is linear in the share?
    # ??? With no speed-up at all everything is serial; with a full one, nothing is.
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)
    # <<< return ...  # type: ignore[return-value]


def wall(needed: float, memory: float, compute: float, communication: float) -> str:
    """Which wall a run stands at: bytes needed and there, seconds computed and waited for others.

    One of "memory", "compute", "communication".
    """
    # >>> The wall.
    # ??? Does it matter how fast a run is that cannot begin?
    # ??? Of the two times, the longer one is where something can be gained.
    if needed > memory:
        return "memory"
    return "communication" if communication > compute else "compute"
    # <<< return ...  # type: ignore[return-value]


def forecast_row(plan: str, devices: int, network: str) -> dict[str, Any]:
    """One step of Llama 3 8B by the planner, and its wall."""
    where = f"{devices // 8} nodes x 8 H100-80GB, {NETWORKS[network]}"
    found = stepladder.forecast("llama3-8b", plan, where)
    time, room = found.time, found.memory_limit_bytes
    assert time is not None and room is not None
    needed = found.memory.peak_bytes
    stands = wall(needed, room, time.step_seconds - time.communication, time.communication)
    row = {"scaling": f"weak, {network}", "devices": devices, "seconds": time.step_seconds}
    return {**row, "GiB": needed / GIB, "communication": time.communication, "wall": stands}


def measure() -> list[dict[str, Any]]:
    ddp = forecast_row("bf16 ddp micro=1 batch=8", 8, "3,200 Gb/s")
    rows = [{**ddp, "scaling": "DDP"}]
    for network in NETWORKS:
        sharded = "bf16 zero3 micro=1 recompute=selective compile=on batch={}"
        found = [forecast_row(sharded.format(n), n, network) for n in (8, 64, 256, 1024)]
        first = found[0]["seconds"]
        rows += [{**row, "efficiency": weak_efficiency(first, row["seconds"])} for row in found]
    for ranks in (8, 64, 256, 1024):
        speedup = amdahl(0.05, ranks)
        row = {"scaling": "Amdahl, 5 % serial", "devices": ranks, "speed-up": speedup}
        rows.append({**row, "efficiency": strong_efficiency(1.0, 1 / speedup, ranks)})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
