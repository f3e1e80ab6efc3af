"""Cross-entropy of logits whose classes are spread over ranks, a chunk of rows at a time.

Of each row every rank sends four numbers: its slice's largest logit, the log of its summed
exponentials, the target's logit where the target is of this slice, and whether it is. From those of
all ranks each computes the loss of all classes, and overwrites its logits with their gradient.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stepladder.data import IGNORED
from stepladder.seam.operators import all_gather

from .cross_entropy_operators import gradient_of_columns_

ELSEWHERE = -1  # a target that another rank has


class ClassSlice(NamedTuple):
    """Which of the classes this rank has."""

    first: int
    ways: int  # ranks that have slices
    group: str  # the name of their process group


def sliced_losses_and_gradient_(
    logits: Tensor, targets: Tensor, share: Tensor, ignore_index: int, classes: ClassSlice
) -> tuple[Tensor, None]:
    """Return the loss of each row over all classes; overwrite logits with gradient × share."""
    columns = columns_of(targets, classes.first, logits.shape[1], ignore_index)
    mine = statistics(logits, columns)
    gathered = all_gather(mine, classes.ways, classes.group).view(classes.ways, *mine.shape)
    return finish_(logits, columns, gathered, share), None


def columns_of(targets: Tensor, first: int, width: int, ignore_index: int) -> Tensor:
    """The column of each row's target in this slice, ELSEWHERE or IGNORED."""
    columns = targets.long() - first
    held = (columns >= 0) & (columns < width)
    return columns.masked_fill(~held, ELSEWHERE).masked_fill(targets == ignore_index, IGNORED)


def statistics(logits: Tensor, columns: Tensor) -> Tensor:
    """The four numbers of each row; a number a line, a column a row."""
    here = columns >= 0
    safe = columns.clamp(min=0)
    op = torch.ops.stepladder.cross_entropy.default
    _, norms = op(logits, safe.masked_fill(columns == IGNORED, IGNORED), IGNORED)
    picked = logits.gather(1, safe[:, None]).squeeze(1).to(norms.dtype).masked_fill(~here, 0.0)
    return torch.stack((*norms.unbind(1), picked, here.to(norms.dtype)))


def finish_(logits: Tensor, columns: Tensor, gathered: Tensor, share: Tensor) -> Tensor:
    """The loss of each row from every rank's statistics; logits become their gradient × share."""
    tops, log_sums, picked, here = gathered.unbind(1)
    top = tops.amax(0)
    log_sum = (tops - top + log_sums).logsumexp(0)
    counted = columns != IGNORED
    # A target that is no class of any rank must not pass for a right answer.
    unknown = counted & (here.sum(0) == 0)
    losses = log_sum - (picked.sum(0) - top)
    factors = share.expand(len(logits)).masked_fill(unknown, float("nan"))
    norms = torch.stack((top, log_sum), 1)
    gradient_of_columns_(logits, columns, norms, factors, IGNORED)
    return losses.masked_fill(unknown, float("nan")).masked_fill(~counted, 0.0)
