"""A Slurm job: run alone, this submits itself; on the nodes, it trains.

    python examples/slurm_job.py
    stepladder launch examples/slurm_job.py --on slurm --nodes 2 --gpus-per-node 8 --time 1:00:00

are the same. Where there is no Slurm, it prints what would be submitted.
"""

import os
import shutil

import torch

import stepladder as sl


def train(folder="runs/slurm"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-3", plan="bf16 zero3")
    run.resume(folder)  # a job that was requeued goes on from its last checkpoint
    for report in sl.fit(run, run.batches(data, size=64), steps=20):
        if report.step % 10 == 9:
            run.save(folder, wait=False)
    run.finish_saving()
    if run.world.is_rank_zero:
        print(f"step {report.step}: loss {report.loss:.4f}")


def submit():
    job = sl.launch(
        __file__, on="slurm", nodes=2, gpus_per_node=8, time="1:00:00",
        dry_run=shutil.which("sbatch") is None,
    )  # fmt: skip
    print(job.text)


if "RANK" in os.environ:  # set by the launcher
    train()
else:
    submit()
