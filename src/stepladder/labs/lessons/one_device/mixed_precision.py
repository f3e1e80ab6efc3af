"""Mixed precision: autocast, loss scaling, fp32 against fp16 and bf16.

Under autocast products run in a narrow type and sums of many numbers (a softmax, a loss) in
float32; parameters stay float32. Forward and the loss belong inside; backward does not, it uses the
types that forward chose. float16 needs a scaled loss, because small gradients fall below its
smallest number; bfloat16 has float32's range and needs none.

The scale must be gone before anybody looks at the gradients. Clipping is such a look: clip scaled
gradients to a norm of 1 and nearly nothing is left of them.

Claim: three steps with clipping end where stepladder.climb with the plan "fp16" ends, and within 1
% of fp32, while forward keeps far fewer bytes. How much faster it is depends on the machine; the
table says.

Predict: Five linear layers keep 2,560 KiB of inputs in fp32. How many KiB do they keep in bf16?
[kept KiB; precision = bf16]

Often wrong:
- the loss is not scaled
- gradients are clipped while they are still scaled
- the model itself is cast to half precision
- the loss is computed in half precision
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def network(width: int = 64, depth: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)), nn.Linear(width, 10))


def loss_of(model: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The loss, in float32, with products in the type."""
    # >>> Products in the type, and the loss in float32.
    # ??? torch.autocast is a context. Which of the two belongs into it, the model or the loss?
    # ??? It takes a kind of device, a type and enabled=. What should it do when the type is
    # ???   float32?
    # ??? Of which type are the logits that come out of it? cross_entropy adds up in the type that
    # ???   it is given.
    with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
        logits = model(x)
    return cross_entropy(logits.float(), y)
    # <<< return cross_entropy(model(x), y)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batch: tuple[Tensor, Tensor],
    dtype: torch.dtype,
) -> float:
    """One step with gradients clipped to a norm of 1."""
    optimizer.zero_grad()
    loss = loss_of(model, *batch, dtype)
    # >>> Backward, clip the gradients to a norm of 1, step: with a scale where one is needed.
    # ??? From what do you go backward, so that small gradients survive?
    # ??? GradScaler has scale, unscale_, step and update. Clipping looks at gradients: which of
    # ???   them must have happened by then?
    # ??? torch.nn.utils.clip_grad_norm_ clips. The scaler decides whether the optimizer steps.
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    # <<< loss.backward()
    # <<< optimizer.step()
    return loss.item()


def kept_bytes(model: nn.Module, batch: tuple[Tensor, Tensor], dtype: torch.dtype) -> int:
    """What autograd keeps of the layers' inputs: tensors with a row for each sample, once each."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.dim() == 2 and len(tensor) == len(batch[0]) and tensor.dtype == dtype:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(batch[0]) if dtype == torch.float32 else loss_of(model, *batch, dtype)
    return sum(kept.values())


def measure(width: int = 512, rows: int = 256) -> list[dict[str, Any]]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = torch.randn(rows, width, device=device), torch.randint(10, (rows,), device=device)
    table = []
    for name, dtype in TYPES.items():
        model = network(width).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
        losses = [train_step(model, optimizer, scaler, (x, y), dtype) for _ in range(3)]
        start = time.perf_counter()
        losses += [train_step(model, optimizer, scaler, (x, y), dtype) for _ in range(3)]
        ms = 1e3 * (time.perf_counter() - start) / 3  # item() in the step waits for the device
        kept = kept_bytes(model, (x, y), dtype)
        table.append({"precision": name, "step ms": ms, "kept KiB": kept / 1024, "loss": losses[3]})
    return table


if __name__ == "__main__":
    for row in measure():
        print(row)
