"""ZeRO-3: each rank keeps its slice of the parameters, gradients and optimizer state.

python examples/zero3.py                             # one process: nothing to slice
torchrun --nproc-per-node 2 examples/zero3.py        # two ranks: the same losses, half the state
"""

import torch
from torch import nn

import stepladder as sl

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(4)]
model = nn.Sequential(nn.Linear(32, 128), *blocks, nn.Linear(128, 10))
draw = torch.Generator().manual_seed(0)
data = [(torch.randn(32, generator=draw), index % 10) for index in range(256)]

run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-3", plan="fp32 zero3 micro=16")
run.resume("runs/zero3")  # on as many ranks as there are now, whoever wrote the checkpoint
for report in sl.fit(run, run.batches(data, size=64), steps=run.index + 10):
    if run.world.is_rank_zero:
        print(f"step {report.step}: loss {report.loss:.4f}")
run.save("runs/zero3")

held = sum(shard.owned.numel() for shard in run.climbed.shards)
rank, ranks = run.world.place.rank, run.world.place.num_ranks
print(f"rank {rank} of {ranks} updates {held:,} parameters")
