"""A frozen matrix costs its own bytes, on any rung: no gradient, no state, no copy in float32."""

import gc

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stepladder.train import as_batch, climb
from tests.ranks import run
from tests.soak import soak_after

WIDTH, RANK, ROWS = 64, 1, 8  # batches and buckets are smaller than half a matrix in 16 bits
FROZEN = 4 * WIDTH * WIDTH  # elements of the matrices


class Adapted(nn.Module):
    """A frozen linear with two narrow ones beside it."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, rows):
        return torch.tanh(self.whole(rows) + self.up(self.down(rows)))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Adapted() for _ in range(4))

    def forward(self, rows):
        for block in self.blocks:
            rows = block(rows)
        return rows


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def cost(plan):
    """Bytes of frozen matrices on this rank; gradients and states of theirs; large tensors."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trained = climb(
        Stack(), loss="squared_error", optimizer="adamw lr=1e-3", plan=plan, device="cpu"
    )
    batch = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    for _ in range(2):
        trained.step(batch, rows="global").read()
    trained.gradients(as_batch(batch, 0))
    frozen = [p for p in trained.module.parameters() if not p.requires_grad]
    held = sum(local(p).untyped_storage().nbytes() for p in frozen)
    kept = [p for p in frozen if p.grad is not None or p in trained.optimizer.state]
    gc.collect()
    every = {one.data_ptr(): one.nbytes() for one in map(storage_of, gc.get_objects()) if one}
    return held, len(kept), sum(size for size in every.values() if size > ROWS * WIDTH * 4)


def storage_of(one):
    try:
        whole = isinstance(one, torch.Tensor) and not isinstance(one, DTensor)
        return one.untyped_storage() if whole and one.device.type == "cpu" else None
    except (ReferenceError, NotImplementedError):
        return None


@pytest.mark.parametrize(
    ("plan", "ranks", "each"),  # bytes of a frozen element on a rank
    soak_after(
        [
            ("bf16", 1, 2),
            ("bf16 zero3", 2, 1),
            ("fp32", 1, 4),
            ("bf16-master", 1, 2),
            ("bf16 ddp", 2, 2),
            ("bf16-master ddp", 2, 2),
            ("bf16 zero1", 2, 2),
            ("bf16 zero2", 2, 1),
            ("bf16-master zero3", 2, 1),
            ("fp32 zero3", 2, 2),
        ],
        gate=2,
    ),
)
def test_a_frozen_matrix_has_no_gradient_no_state_and_no_copy(plan, ranks, each):
    for held, kept, large in run(cost, ranks, plan):
        assert held == each * FROZEN and kept == 0
        assert large <= held, "a tensor as large as a matrix, and none of them"
