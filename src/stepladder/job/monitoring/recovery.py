"""What a run does about a loss spike, and about replicas that drift apart.

[Note: going back] `train.spike = "rewind"` loads the newest checkpoint, whose losses were as usual,
and goes on from its step with the batches that come next: those between the checkpoint and the
spike are not read again, since one of them may be why. So the count of steps goes back and the
position in the data does not. The checkpoint is then written again with the new position: a run
that is killed later makes no other choice. All ranks go back or none does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from stepladder.errors import TrainingError
from stepladder.plan import AXES
from stepladder.plan.recipe import TrainChoice
from stepladder.train import Run


@dataclass
class Recovery:
    run: Run
    folder: Path
    how: TrainChoice

    def save_start(self) -> None:
        """Save the first state, where a rewind may need one."""
        if self.how.spike == "rewind" and not self.run.index:
            self.run.save(self.folder)

    def check_copies(self, step: int) -> None:
        """Compare copies where it is due, and before every save: see `train.check_copies_every`."""
        every = self.how.check_copies_every
        if every and (step + 1) % every == 0:
            self.run.check_copies()

    def answer_spikes(self, step: int) -> bool:
        """Do what is to be done about spikes found up to now; whether the run went back."""
        jumps = self.run.health.take_jumps()
        if self.how.spike == "off":
            return False
        if self.run.world.is_rank_zero:
            self.run.events += [f"step {at}: {jump}" for at, jump in jumps]
        if self.how.spike == "report" or not self.agreed(bool(jumps)):
            return False
        at, jump = jumps[0] if jumps else (step, "another rank saw the loss jump")
        if self.how.spike == "stop":
            remedy = "Go on from the last checkpoint, with a lower rate or train.spike=rewind."
            raise TrainingError(f"step {at}", f"the loss jumped: {jump}", remedy)
        if self.run.health.rewinds >= self.how.rewinds:
            problem = f"{jump}, after going back {self.how.rewinds} times"
            remedy = "Lower the learning rate, look at the data, or raise train.rewinds."
            raise TrainingError(f"step {at}", problem, remedy)
        self.go_back()
        return True

    def agreed(self, spiked: bool) -> bool:
        """Whether any rank saw a spike."""
        world = self.run.world
        return bool(world.sum(torch.tensor(float(spiked), device=world.device), *AXES).item())

    def go_back(self) -> None:
        skipped = self.run.position
        path = self.run.rewind(self.folder)
        if self.run.world.is_rank_zero:
            self.run.events.append(
                f"went back to {path.name}; samples up to {skipped - 1} are not read again "
                f"({self.run.health.rewinds} of at most {self.how.rewinds} times)"
            )
