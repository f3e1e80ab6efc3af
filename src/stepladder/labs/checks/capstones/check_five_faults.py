"""Checks of the mended job: each of the five promises by itself, then the whole training."""

from __future__ import annotations

import math
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.labs.equipment.lab_ranks import on_ranks
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, is_times

RANKS = 2
MISTAKES = (
    Mistake(
        "the order of the first epoch is repeated in every epoch",
        ".manual_seed(epoch)",
        ".manual_seed(0)",
        "epochs 0 and 1 have the same order",
    ),
    Mistake(
        "gradients are added over ranks and not averaged",
        "        gradient /= dist.get_world_size()\n",
        "",
        "2 × too large: all_reduce adds",
    ),
    Mistake(
        "gradients are clipped while they are still scaled",
        "    for gradient in gradients_of(model):\n        gradient /= SCALE\n"
        "    nn.utils.clip_grad_norm_(model.parameters(), CLIP)\n",
        "    nn.utils.clip_grad_norm_(model.parameters(), CLIP)\n"
        "    for gradient in gradients_of(model):\n        gradient /= SCALE\n",
        "they were clipped before they were unscaled",
    ),
    Mistake(
        "the rate grows with the square of the ranks",
        "full = RATE * num_ranks",
        "full = RATE * num_ranks**2",
        "2 × too large for 2 ranks",
    ),
    Mistake(
        "evaluation updates and uses the statistics of the batch",
        "    model.eval()\n",
        "",
        "depends on the other rows",
    ),
)


class PlainNet(nn.Sequential):
    """No layer looks at the batch, so any division into micro-batches learns the same."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        super().__init__(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.double()


def check_the_order(lesson: ModuleType) -> None:
    """Each epoch has another order; in each, every row is read once, by one of the ranks."""
    orders = []
    for epoch in range(3):
        shares = [list(lesson.rows_of_epoch(epoch, rank, RANKS)) for rank in range(RANKS)]
        orders.append(shares)
        read = sorted(row for share in shares for row in share)
        expect(
            read == list(range(lesson.ROWS)),
            f"epoch {epoch}: {len(set(read))} of {lesson.ROWS} rows are read, {len(read)} reads in "
            "all: each row is to be read once.",
        )
    for epoch in (1, 2):
        expect(
            orders[epoch] != orders[epoch - 1],
            f"epochs {epoch - 1} and {epoch} have the same order: the draw depends on nothing that "
            "changes.",
        )


def check_the_gradient(lesson: ModuleType) -> None:
    """Gradients are SCALE times those of the whole batch, as DistributedDataParallel has them."""
    found, wanted = on_ranks(gradients, RANKS, lesson)[0]
    times = lesson.SCALE
    expect(
        not is_times(found, times * RANKS * wanted, 1.0),
        f"gradients are {RANKS} × too large: all_reduce adds what the ranks have.",
    )
    expect_close(found / times, wanted, "gradients over SCALE, beside DistributedDataParallel's")


def gradients(lesson: ModuleType) -> tuple[Tensor, Tensor]:
    """Run on each rank: the learner's, and DDP's of one backward without scale."""
    rank, (x, y) = dist.get_rank(), lesson.make_data()
    mine = slice(rank * lesson.BATCH // RANKS, (rank + 1) * lesson.BATCH // RANKS)
    own, ddp = PlainNet(), DistributedDataParallel(PlainNet())
    lesson.make_gradients(own, x[mine], y[mine])
    (ddp(x[mine]) - y[mine]).square().mean().backward()
    return flat(own), flat(ddp)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def check_the_clipping(lesson: ModuleType) -> None:
    """A step follows the true gradient, shortened to norm CLIP where it is longer."""
    for norm in (0.5, 5.0, 500.0):
        moved = moved_by(lesson, norm)
        wanted = min(norm, lesson.CLIP)
        at = f"a true gradient of norm {norm:g}"
        expect(
            not math.isclose(moved * lesson.SCALE, lesson.CLIP, rel_tol=1e-3),
            f"{at}: steps are {lesson.SCALE * wanted / lesson.CLIP:,.0f} × too small: they were "
            "clipped before they were unscaled.",
        )
        expect_close(moved, wanted, f"{at}: the step at rate 1", rtol=1e-4)


def moved_by(lesson: ModuleType, norm: float) -> float:
    """How far a step at rate 1 goes."""
    model = nn.Linear(3, 1, bias=False).double()
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight) * norm / math.sqrt(3) * lesson.SCALE
    lesson.update(model, torch.optim.SGD(model.parameters(), lr=1.0))
    left = model.weight.grad
    expect(left is None or not left.any(), "a gradient is left for the next step to add to.")
    return (model.weight.detach() - before).norm().item()


def check_the_rate(lesson: ModuleType) -> None:
    """The rate is in proportion to the ranks, and is reached in WARMUP equal steps."""
    for ranks in (1, 2, 4):
        wanted = [lesson.RATE * ranks * min(1, (at + 1) / lesson.WARMUP) for at in range(8)]
        mine = [float(lesson.rate_of(step, ranks)) for step in range(8)]
        expect(
            not is_times(mine, wanted, ranks) or ranks == 1,
            f"the rate is {ranks} × too large for {ranks} ranks: they read {ranks} times the rows, "
            "no more.",
        )
        expect_close(mine, wanted, f"rates of eight steps on {ranks} ranks")


def check_the_evaluation(lesson: ModuleType) -> None:
    """A row's prediction does not depend on other rows, and evaluating changes nothing."""
    x, y = lesson.make_data()
    model = lesson.make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = lesson.evaluate(model, x, y)
    halves = [lesson.evaluate(model, x[at::2], y[at::2]) for at in range(2)]
    expect(
        math.isclose(whole, sum(halves) / 2, rel_tol=1e-9),
        f"the loss of all rows is {whole:.6f}, of its halves {sum(halves) / 2:.6f}: what is "
        "predicted for a row depends on the other rows.",
    )
    changed = [name for name, value in model.state_dict().items() if (value != before[name]).any()]
    expect(not changed, f"evaluating changed {', '.join(changed)}.")
    expect(model.training, "the model does not go on training after it was evaluated.")


def check_one_plain_loop_learns_the_same(lesson: ModuleType) -> None:
    """Two ranks learn what one loop over whole batches learns, in float64, to nine digits."""
    x, y = lesson.make_data()

    def both() -> tuple[list[float], list[float]]:
        return lesson.train(PlainNet(), x, y), plain(lesson, x, y)

    found, wanted = on_ranks(both, RANKS)[0]
    for epoch, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        expect_close(mine, right, f"the loss after epoch {epoch}", rtol=1e-9)


def plain(lesson: ModuleType, x: Tensor, y: Tensor) -> list[float]:
    """The same training by one process, without ranks, micro-batches, scale or torch's clipping."""
    model, step, losses = PlainNet(), 0, []
    share = lesson.BATCH // RANKS
    for epoch in range(lesson.EPOCHS):
        shares = [torch.tensor(lesson.rows_of_epoch(epoch, rank, RANKS)) for rank in range(RANKS)]
        for at in range(0, lesson.ROWS // RANKS, share):
            rows = torch.cat([each[at : at + share] for each in shares])
            loss = (model(x[rows]) - y[rows]).square().mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            norm = math.sqrt(sum(grad.square().sum().item() for grad in grads))
            rate = lesson.RATE * RANKS * min(1, (step + 1) / lesson.WARMUP)
            with torch.no_grad():
                for p, grad in zip(model.parameters(), grads):
                    p.sub_(rate * min(1, lesson.CLIP / (norm + 1e-6)) * grad)
            step += 1
        with torch.no_grad():
            losses.append((model(x) - y).square().mean().item())
    return losses
