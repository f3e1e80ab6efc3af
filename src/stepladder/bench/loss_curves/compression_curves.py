"""Loss curves of a training under gradient compression, on ranks that really send.

Every row trains the same weights on the same global batches under DDP; only what the ranks send
differs. PowerSGD is trained without its error feedback too, as a warning: what the thin factors
miss is then lost in every step instead of being added to the next one's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepladder.bench.time_plans import Workload
from stepladder.data import Batch
from stepladder.errors import NonFinite, PlanError
from stepladder.launch import Ranks
from stepladder.plan import BatchSplit, Optimizer, Plan
from stepladder.train import Run, climb

from .final_loss import mean_of_last, refuse_noise, with_seed

OPTIMIZER = "sgd lr=0.1 momentum=0.9"  # which error feedback was made for


@dataclass(frozen=True, slots=True)
class CompressionCase:
    compress: str  # as in a plan
    error_feedback: bool = True

    @property
    def name(self) -> str:
        return self.compress if self.error_feedback else f"{self.compress}, no error feedback"


CASES = (
    CompressionCase("none"),
    CompressionCase("bf16"),
    CompressionCase("powersgd:4"),
    CompressionCase("powersgd:4", error_feedback=False),
    CompressionCase("powersgd:1"),
    CompressionCase("powersgd:1", error_feedback=False),
)


@dataclass(frozen=True, slots=True)
class CompressionCurve:
    """One training's loss by step, and the bytes of gradients that a rank gave to the backend."""

    case: CompressionCase
    seed: int  # of the first weights
    losses: tuple[float, ...]
    step_bytes: int  # of gradients in the last step, as they are sent
    final: float | None = None  # mean of the last tenth; None where training broke off
    problem: str = ""


def measure_compression_curves(
    pool: Ranks,
    work: Workload,
    cases: Sequence[CompressionCase] = CASES,
    optimizer: str = OPTIMIZER,
    seeds: int = 1,
) -> Iterator[CompressionCurve]:
    """Every case in each seed, as each is done."""
    refuse_noise(work)
    ranks, rows = pool.ranks, work.batches[0].num_rows
    if rows % ranks:
        below = rows - rows % ranks
        near = " or ".join(str(size) for size in (below, below + ranks) if size)
        problem = f"{rows} samples do not divide over {ranks} ranks"
        raise PlanError("batch", problem, f"Nearest that do: {near}.")
    for seed in range(seeds):
        for case in cases:
            given = (with_seed(work, seed), case, optimizer, seed)
            yield pool.call(train_rank, *given, ranks=ranks)[0]


def train_rank(
    work: Workload, case: CompressionCase, optimizer: str, seed: int
) -> CompressionCurve:
    """On one rank: the whole training, whose losses all ranks agree on."""
    rows = work.batches[0].num_rows
    plan = replace(
        Plan.parse(f"fp32 ddp compress={case.compress}"),
        batch=BatchSplit(rows),
        optimizer=Optimizer.parse(optimizer),
    )
    run = climb(work.make(), loss=work.loss, plan=plan, device=work.device, seed=seed)
    losses: list[float] = []
    sent, problem = 0, ""
    try:
        for batch in work.batches:
            before = sent_bytes(run)
            losses.append(run.step(share_of(batch, run)).loss)
            sent = sent_bytes(run) - before
            if not case.error_feedback:
                forget_errors(run)
    except NonFinite:
        problem = f"diverged in step {len(losses)}"
    whole = sum(p.numel() * p.element_size() for p in run.module.parameters() if p.requires_grad)
    final = None if problem else mean_of_last(losses)
    return CompressionCurve(case, seed, tuple(losses), sent or whole, final, problem)


def share_of(batch: Batch, run: Run) -> Batch:
    """The rows of a global batch that are this rank's."""
    place = run.world.place
    each = batch.num_rows // place.num_ranks
    return batch.rows(slice(each * place.rank, each * (place.rank + 1))).to(run.world.device)


def sent_bytes(run: Run) -> int:
    compression = run.climbed.forward_backward.gradient_sync.compression
    return compression.sent_bytes if compression else 0


def forget_errors(run: Run) -> None:
    """Switch error feedback off: nothing that was missed is added to the next gradient."""
    compression = run.climbed.forward_backward.gradient_sync.compression
    if compression:
        compression.missed.clear()
