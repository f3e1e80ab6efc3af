"""The learning rate of a larger batch: linear and square-root scaling, with and without warm-up.

Every row trains the same weights on the same samples in the same order, once through: the base
batch takes many steps, the larger one few. A sample is seen before anything was learned from it, so
the training loss is a loss on unseen text, and its mean over the last samples compares rows.

Why a rule: a batch k times larger takes k times fewer steps. Its gradient is the mean over k base
batches, so one step of SGD at k times the rate goes about as far as k base steps, while the loss
stays near its tangent (Goyal et al. 2017): linear. Adam divides by the gradient's own size, which
hardly depends on the batch while noise rules; the noise of the mean falls with √k, and so √k keeps
the noise of the whole way (Malladi et al. 2022): square root. Early steps bend most, hence warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stepladder.bench.time_plans import Workload
from stepladder.data import Batch
from stepladder.errors import NonFinite, PlanError
from stepladder.plan import BatchSplit, Optimizer, Plan
from stepladder.plan.learning_rate import Rate, scale_rate
from stepladder.train import climb

from .final_loss import mean_of_last, refuse_noise, with_seed

OPTIMIZERS = ("sgd lr=0.02 momentum=0.9", "adamw lr=0.001")  # linear; square root
FP32 = Plan.parse("fp32")
RULES = ("none", "linear", "sqrt")
WARMUP = 0.2  # of the steps


@dataclass(frozen=True, slots=True)
class RateCase:
    """One training: an optimizer at the rate that a rule gives for this batch."""

    optimizer: str  # as it is at the base batch
    batch: int
    base: int  # batch
    rule: str  # "base" for the base batch itself
    warmup: int = 0  # steps

    @property
    def lr(self) -> float:
        rule = "none" if self.rule == "base" else self.rule
        lr = Optimizer.parse(self.optimizer).lr
        return scale_rate(lr, batch=self.batch, reference=self.base, rule=rule)

    @property
    def name(self) -> str:
        return f"{self.rule}, warm-up {self.warmup}" if self.warmup else self.rule


@dataclass(frozen=True, slots=True)
class RateCurve:
    """One training's loss over the samples it has seen."""

    case: RateCase
    seed: int  # of the first weights
    losses: tuple[float, ...]
    final: float | None = None  # mean loss of the last tenth; None where training broke off
    problem: str = ""

    @property
    def samples(self) -> list[int]:
        """Seen before each loss was taken."""
        return [index * self.case.batch for index in range(len(self.losses))]


def learning_rate_cases(
    optimizers: Sequence[str], base: int, times: int, steps: int
) -> list[RateCase]:
    """The base batch of each optimizer, then every rule without and with warm-up."""
    if times < 2:
        problem = f"{times} times the base batch of {base} is no larger batch"
        raise PlanError("--times", problem, "Use 2 or more, such as 8.")
    warmup = max(1, round(WARMUP * steps))
    cases = []
    for words in optimizers:
        cases.append(RateCase(words, base, base, "base"))
        cases += [
            RateCase(words, base * times, base, rule, each)
            for rule in RULES
            for each in (0, warmup)
        ]
    return cases


def measure_learning_rates(
    work: Workload, cases: Sequence[RateCase], plan: Plan = FP32, seeds: int = 1
) -> Iterator[RateCurve]:
    """Every case in each seed, as each is done; the workload's batches are the largest batch's."""
    refuse_noise(work)
    for seed in range(seeds):
        for case in cases:
            yield train(with_seed(work, seed), case, plan, seed)


def train(work: Workload, case: RateCase, plan: Plan, seed: int) -> RateCurve:
    whole = replace(
        plan,
        batch=BatchSplit(case.batch),
        optimizer=replace(Optimizer.parse(case.optimizer), lr=case.lr),
    )
    rate = Rate(warmup=case.warmup)
    run = climb(work.make(), loss=work.loss, plan=whole, rate=rate, device=work.device, seed=seed)
    losses: list[float] = []
    problem = ""
    try:
        for batch in cut(work.batches, case.batch):
            losses.append(run.step(batch.to(run.world.device)).loss)
    except NonFinite:
        problem = f"diverged in step {len(losses)}"
    return RateCurve(case, seed, tuple(losses), None if problem else mean_of_last(losses), problem)


def cut(batches: Sequence[Batch], rows: int) -> Iterator[Batch]:
    """The same samples in the same order, in batches of so many."""
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.rows(slice(start, start + rows))
