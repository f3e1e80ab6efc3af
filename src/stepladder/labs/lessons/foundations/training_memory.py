"""Where training memory goes.

Some of it stays from step to step and depends on the model alone: in float32 each parameter takes 4
bytes, its gradient 4, and the optimizer keeps nothing (SGD), one number (momentum) or two (Adam).
The rest is what forward keeps for backward, the activations, and grows with the batch.

Autograd shows what it keeps: `saved_tensors_hooks` calls a function for each saved tensor. Two
things must be known to count them. A linear layer saves its weight too, which is memory, but not
new memory. And one storage is often saved twice: what a ReLU gives is kept by the ReLU and by the
layer after it.

Claim: a network of N parameters under AdamW holds 16 N bytes whatever the batch, and its
activations are so many bytes a row, to the byte; stepladder.measure.measure_memory finds the same
owners in a real step. Beyond some batch the activations are nearly everything.

Predict: 85,002 parameters under AdamW and a batch of 4,096 rows of 64 numbers, through layers of
256, 256 and 10: what share of the memory is activations? [share of activations; rows = 4096]

Often wrong:
- Adam's second moment is forgotten
- the gradients are forgotten
- weights are counted among the activations
- what two layers keep is counted twice
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

MOMENTS = {"sgd": 0, "momentum": 1, "adamw": 2}
BYTES = 4  # of a float32


def state_bytes(num_parameters: int, optimizer: str) -> dict[str, int]:
    """What lives from step to step, by owner."""
    # >>> The bytes of each owner.
    # ??? Which of the three depends on the optimizer? MOMENTS says how many numbers it keeps of
    # ???   each parameter.
    # ??? A gradient has the shape and the type of what it is the gradient of.
    return {
        "parameters": BYTES * num_parameters,
        "gradients": BYTES * num_parameters,
        "optimizer": BYTES * num_parameters * MOMENTS[optimizer],
    }
    # <<< return {"parameters": ..., "gradients": ..., "optimizer": ...}  # type: ignore[dict-item]


def kept_bytes(model: nn.Module, x: Tensor) -> int:
    """What autograd keeps of a forward pass beside the parameters."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        # >>> Remember each storage that autograd saves once, and no parameter's.
        # ??? This is called for every tensor that forward saves. When does the same memory come
        # ???   twice?
        # ??? A dict has one entry for a key: which number is the same for all tensors that read one
        # ???   storage?
        # ??? `known` holds what is not new.
        if address not in known:
            kept[address] = tensor
        # <<< kept[len(kept)] = tensor
        return tensor.detach()

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(x).square().mean()
    assert loss.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def rows_that_fit(model: nn.Module, width: int, optimizer: str, budget_bytes: int) -> int:
    """The largest batch for which state and activations stay within the budget."""
    num_parameters = sum(p.numel() for p in model.parameters())
    # >>> What each row adds to the bytes that are kept, and what is kept besides.
    # ??? Call kept_bytes for two batch sizes. What do the two numbers tell?
    # ??? All rows add the same. What would be left for a batch of no rows?
    few, many = (kept_bytes(model, torch.randn(rows, width)) for rows in (8, 16))
    each, fixed = (many - few) // 8, few - (many - few)
    # <<< each, fixed = 1, 0
    return (budget_bytes - sum(state_bytes(num_parameters, optimizer).values()) - fixed) // each


def network(width: int = 64, hidden: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, 10),
    )  # fmt: skip


def measure() -> list[dict[str, float]]:
    model = network()
    num_parameters = sum(p.numel() for p in model.parameters())
    table = []
    for rows in (1, 16, 256, 4096):
        owners = state_bytes(num_parameters, "adamw")
        owners["activations"] = kept_bytes(model, torch.randn(rows, 64))
        share = owners["activations"] / sum(owners.values())
        table.append({"rows": rows, **owners, "share of activations": share})
    return table


if __name__ == "__main__":
    for row in measure():
        print(row)
