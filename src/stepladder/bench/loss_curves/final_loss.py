"""What trainings are compared by: the loss at their end, over several seeds.

Short trainings of other first weights end as far apart as many a setting moves them: a difference
counts for what it says only if it has one sign in every seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from stepladder.bench.time_plans import Workload
from stepladder.errors import PlanError

LAST = 0.1  # of the steps, so many samples in every row


def mean_of_last(losses: Sequence[float]) -> float:
    """The mean loss of the last tenth: that of one batch says more about the batch."""
    return statistics.fmean(losses[-max(1, math.ceil(LAST * len(losses))) :])


def differences(
    finals: Sequence[float | None], reference: Sequence[float | None]
) -> list[float] | None:
    """How far losses are above those of the same seeds; None where a training broke off."""
    both = list(zip(finals, reference, strict=True))
    found = [final - other for final, other in both if final is not None and other is not None]
    return found if len(found) == len(both) else None


def with_seed(work: Workload, seed: int) -> Workload:
    """The same batches for a model of other first weights."""
    make: Any = work.make  # every workload's model takes a seed
    return replace(work, make=partial(make, seed=seed))


def refuse_noise(work: Workload) -> None:
    """Random samples teach nothing, and every training on them ends alike."""
    if work.vocab is None and not (work.code and work.code.training_samples()):
        problem = f"{work.name} would learn random images, where every training ends alike"
        raise PlanError("model", problem, "Name a model of text, such as gpt-tiny.")
