"""Run folders with every kind of entry in them, written by the real journal."""

import math
import random

from stepladder.record import Journal, Report

OWNERS = {"parameters": 4e9, "gradients": 4e9, "optimizer": 8e9, "activations": 31e9, "logits": 6e9}
LIMIT = 80 * 2**30


def write_run(folder, *, steps=600, seed=1, finished=True):
    """A run as a model of some size would leave it: warm-up, a spike, a restart, a slow rank."""
    luck = random.Random(seed)
    with Journal(folder) as journal:
        (folder / "run.toml").write_text(f'[model]\nname = "m"\n\n[train]\nsteps = {steps}\n')
        environment = {"torch": "2.13.0", "device": "H100-80GB", "command": "stepladder train"}
        journal.write(
            "start", plan="bf16 zero3", step=0, because="it fits", environment=environment
        )
        memory = {**OWNERS, "peak_bytes": sum(OWNERS.values())}
        spent = {"matrix": 0.5, "communication": 0.1, "step_seconds": 0.6}
        journal.write("forecast", memory=memory, time=spent, tokens_per_step=65536)
        for step in range(steps):
            write_step(journal, step, luck)
        journal.write(
            "event", step=steps // 2, text="out of memory: half the micro-batch <b>now</b>"
        )
        journal.write("start", plan="bf16 zero3", step=steps - 10)
        for step in range(steps - 10, steps):
            write_step(journal, step, luck)
        write_timeline(journal, steps - 1)
        if finished:
            measured = {owner: size * 1.05 for owner, size in OWNERS.items()}
            journal.write("measured", memory=measured, step_seconds=0.62, tokens_per_second=1e5)
            journal.write("profile", bound="bound by compute", causes={"matrix": 0.5, "host": 0.1})
            journal.write("summary", **{"steps": steps, "validation loss": 2.25})
    return folder


def write_step(journal, step, luck):
    loss = 2 + 8 * math.exp(-step / 80) + luck.gauss(0, 0.03)
    report = Report(
        step=step, loss=loss, grad_norm=1 + luck.random(), lr=3e-4 * min(1, (step + 1) / 50),
        tokens=65536, seconds=0.6 + luck.gauss(0, 0.01), memory_bytes=int(70e9),
        tokens_per_second=1e5 + luck.gauss(0, 1e3), flops_per_second=4e14, mfu=0.41, hfu=0.5,
        loss_scale=1024.0, data_seconds=0.01,
    )  # fmt: skip
    journal.write("step", **report.to_dict())
    if step % 20 == 0:
        journal.write("evaluation", step=step, loss=loss + 0.1)
        journal.write("logged", step=step, name="val/<b>accuracy", value=1 / loss)
        journal.write("device", step=step, utilisation=0.9, temperature_c=60, power_w=600.0)
        owners = {owner: int(size * luck.uniform(0.98, 1.02)) for owner, size in OWNERS.items()}
        journal.write("memory", step=step, owners=owners, limit_bytes=LIMIT)
        own = [0.5, 0.51, 0.7, 0.5]
        journal.write("ranks", step=step, own_seconds=own, wait_seconds=[0.2, 0.2, 0, 0.2])
        journal.write("collectives", step=step, seconds={"all_gather": 0.05, "all_reduce": 0.02})
    if step % 100 == 99:
        journal.write("save", step=step, path=f"step-{step + 1:06d}")


def write_timeline(journal, step):
    lanes = [
        {
            "rank": rank,
            "spans": [
                {"name": f"{kind}{micro}", "start": 0.1 * (micro + rank) + offset, "seconds": 0.08}
                for kind, offset in (("F", 0.0), ("B", 0.5))
                for micro in range(4)
            ],
        }
        for rank in range(2)
    ]
    journal.write("timeline", step=step, lanes=lanes)
