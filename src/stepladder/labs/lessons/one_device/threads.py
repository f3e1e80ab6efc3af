"""Several GPUs in one process, and why not.

The oldest way to use several GPUs keeps one process: every step it copies the model to each device,
cuts the batch, runs a thread a device and brings all gradients back to the first. torch calls it
nn.DataParallel. It is right, and it is slow, for two reasons that can be counted.

Threads share one interpreter, so Python runs in one of them at a time. And all copies go through
the first device: models out to the others and gradients back from them, every step, over its one
link. A ring of processes, which is what DDP uses, loads all links alike, and none with more than
two models, however many ranks there are.

Claim: threads give the gradient of the whole batch; with 8 devices the first one's link carries
eight times what a ring's links do (stepladder.bench.ring_all_reduce.ring_bytes).

Predict: How many models, gradients counted as models, cross the first device's link in a step with
8 devices and a thread for each? [models over the first link; ways = 8]

Often wrong:
- the shares' gradients are summed and not weighed
- the copies are made once and go stale
- the first device sends to itself
- a ring sends the whole gradient at each hop
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss


def share_gradients(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], int]:
    """What one thread computes: the gradients of its share of the batch, and its rows."""
    gradients = torch.autograd.grad(mse_loss(model(x), y), list(model.parameters()))
    return list(gradients), len(x)


class Threaded:
    """A model whose gradients are computed by a thread for each copy."""

    def __init__(self, model: nn.Module, ways: int) -> None:
        self.model, self.ways = model, ways
        self.copies = [copy.deepcopy(model) for _ in range(ways)]

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Leave the gradient of the whole batch's mean loss in the model."""
        for other in self.copies:
            # >>> Have each copy compute with the model's present weights.
            # ??? The copies were made once, in __init__. What has happened to the model since then?
            # ??? A module's whole state is a dict: one method gives it, another one takes it.
            other.load_state_dict(self.model.state_dict())
            # <<< pass
        with ThreadPoolExecutor(self.ways) as pool:
            parts = zip(self.copies, x.tensor_split(self.ways), y.tensor_split(self.ways))
            results = list(pool.map(lambda part: share_gradients(*part), parts))
        for index, parameter in enumerate(self.model.parameters()):
            # >>> The gradient of the whole batch's mean, out of the shares' gradients.
            # ??? Each share's gradient is that of its own mean. Do shares of 3 and of 2 rows count
            # ???   the same?
            # ??? `results` holds (gradients, rows) of each share, and `index` says which of the
            # ???   gradients.
            parameter.grad = sum(
                (g[index] * (rows / len(x)) for g, rows in results), torch.zeros_like(parameter)
            )
            # <<< parameter.grad = results[0][0][index]


def first_link_bytes(model_bytes: int, ways: int) -> int:
    """What leaves and reaches the first of so many devices each step, with threads."""
    # >>> Count what crosses that link in one step.
    # ??? How many devices need a copy and have none?
    # ??? And what comes back from each of them?
    return 2 * (ways - 1) * model_bytes
    # <<< return ...  # type: ignore[return-value]


def ring_link_bytes(model_bytes: int, ways: int) -> float:
    """What each rank sends in a ring all-reduce of the gradient."""
    # >>> Count what one rank sends.
    # ??? A ring cuts the gradient into as many parts as there are ranks, and one part leaves at
    # ???   each hop.
    # ??? How many hops does it take until a part has met every rank? And until every rank has met
    # ???   the finished part?
    return 2 * (ways - 1) * model_bytes / ways
    # <<< return ...  # type: ignore[return-value]


def measure() -> list[dict[str, float]]:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    x, y = torch.randn(512, 256), torch.randn(512, 256)
    size = sum(p.nbytes for p in model.parameters())
    rows = []
    for ways in (1, 2, 4, 8):
        threaded = Threaded(model, ways)
        threaded.backward(x, y)
        start = time.perf_counter()
        threaded.backward(x, y)
        row = {"ways": ways, "ms here": 1e3 * (time.perf_counter() - start)}
        row["models over the first link"] = first_link_bytes(size, ways) / size
        rows.append({**row, "models over a ring's link": ring_link_bytes(size, ways) / size})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
