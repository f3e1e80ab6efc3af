"""The best checkpoint: saving when a value is better than those of the checkpoints that are kept.

Nothing is remembered between calls: each checkpoint holds its value, and the folder is read again.
Rank 0 reads it and decides for all, because another machine may see a shared folder as it was a
moment ago. What is no longer among the best is deleted when the new one is committed.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from stepladder.checkpoint.best import Ranking, list_best, list_of_others, read_ranking
from stepladder.checkpoint.commit import checkpoint_folder
from stepladder.errors import PlanError, TrainingError
from stepladder.plan import AXES
from stepladder.train.run import Run

from .mode import check_mode, read_value


class BestCheckpoint:
    """Saves the run when a value is among the best so far, and deletes what no longer is.

    Every rank calls it with the same value, as `run.evaluate` returns it. NaN is never saved.
    Checkpoints that `run.save` wrote into the same folder are left alone. `run.load(best.path)`
    goes back to the best one; a resumed run finds it in the folder, and one that began anew is
    refused a folder with the best of an earlier run.

    Args:
        folder: for these checkpoints, such as "runs/demo/best".
        mode: "min" if lower values are better, such as losses; "max" if higher ones are.
        keep: checkpoints to keep.
        wait: as in `run.save`.

    >>> import torch, stepladder as sl
    >>> from stepladder.train import BestCheckpoint
    >>> run = sl.climb(torch.nn.Linear(4, 2), loss="cross_entropy", plan="fp32", device="cpu")
    >>> best = BestCheckpoint(run, "runs/best")
    >>> best(0.5).name, best(0.7), best.value
    ('step-000000', None, 0.5)
    """

    def __init__(
        self,
        run: Run,
        folder: str | Path,
        *,
        mode: str = "min",
        keep: int = 1,
        wait: bool = True,
    ) -> None:
        if not hasattr(run, "saver"):
            problem = f"was given a {type(run).__name__}, and saves a run"
            raise PlanError("best checkpoint", problem, "Give it what climb returned.")
        if type(keep) is not int or keep < 1:
            problem = f"{keep!r} is not a number of checkpoints to keep"
            raise PlanError("keep", problem, "Use 1 or more.")
        self.run, self.folder, self.wait = run, Path(folder), wait
        self.mode, self.keep = check_mode(mode), keep

    def __call__(self, value: float) -> Path | None:
        """Save the run if the value is among the best; the checkpoint's path, or None."""
        ranking = Ranking(read_value(value), self.mode, self.keep)
        self.run.saver.finish(self.run.events)  # the one before it may be among the best
        if not self._agree(ranking):
            return None
        self.run.agree_on_health()
        return self.run.saver.save(self.run, self.folder, wait=self.wait, ranking=ranking)

    @property
    def path(self) -> Path | None:
        """The best checkpoint in the folder; None if there is none."""
        return next((path for path, _ in list_best(self.folder, self.mode)), None)

    @property
    def value(self) -> float | None:
        """The value of the best checkpoint in the folder; None if there is none."""
        return next((why.value for _, why in list_best(self.folder, self.mode)), None)

    def _agree(self, ranking: Ranking) -> bool:
        """Whether to save, as rank 0 decides; refused where the ranks have different values."""
        world, value = self.run.world, ranking.value
        chosen = world.is_rank_zero and self._is_better(ranking)
        number, isnan = (0.0, True) if math.isnan(value) else (value, False)
        there = checkpoint_folder(self.folder, self.run.index)
        taken = world.is_rank_zero and there.exists() and read_ranking(there) is None
        others = world.is_rank_zero and self._are_of_an_earlier_run()
        mine = [number, -number, isnan, not isnan, chosen, taken, others]
        told = torch.tensor(mine, dtype=torch.float64, device=world.device)
        with world.explain_hangs():
            high, low, some_nan, some_number, save, clashes, earlier = world.max(
                told, *AXES
            ).tolist()
        if earlier:
            problem = f"{self.folder} holds the best of an earlier run, and this one began anew"
            raise TrainingError(
                "folder", problem, "Resume before, name another folder, or delete that one."
            )
        if high != -low or some_nan == some_number:
            raise TrainingError(
                "value",
                f"rank {world.place.rank} was given {value:g} and other ranks another value",
                "Give every rank the same, such as what run.evaluate returns.",
            )
        if save and clashes:
            problem = f"{there} is a checkpoint of run.save, of the same step"
            raise TrainingError("folder", problem, "Give BestCheckpoint a folder of its own.")
        return bool(save)

    def _are_of_an_earlier_run(self) -> bool:
        """Whether the best so far are of a run that this one did not go on from."""
        saver = self.run.saver
        return not saver.resumed and bool(list_of_others(self.folder, self.mode, saver.token))

    def _is_better(self, ranking: Ranking) -> bool:
        if math.isnan(ranking.value):
            return False
        kept = dict(list_best(self.folder, self.mode))
        again = kept.get(checkpoint_folder(self.folder, self.run.index))
        if again is not None:  # of a run that was resumed from an earlier step
            return ranking.cost < again.cost
        return len(kept) < self.keep or ranking.cost < max(why.cost for why in kept.values())
