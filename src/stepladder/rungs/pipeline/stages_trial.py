"""The trial of a loss in a pipeline: the last stage, which alone has outputs, leads the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from stepladder.data import Batch
from stepladder.errors import StepladderError
from stepladder.loss import Weighting
from stepladder.rungs.loss_module import with_loss
from stepladder.rungs.loss_trial import LossTrial


@dataclass(slots=True, kw_only=True)
class StagesTrial(LossTrial):
    """Tries a loss on all stages together."""

    group: dist.ProcessGroup
    driver: int  # the last stage's rank in the group

    def decide(self, rows: Batch, sizes: Sequence[int]) -> Weighting | None:
        if dist.get_group_rank(self.group, dist.get_rank()) != self.driver:
            return self.follow()
        try:
            found = LossTrial.decide(self, rows, sizes)
        except StepladderError as refused:
            self.send("refuse", refused)
            raise
        self.send("end", found, self.untried)
        return found

    def perform(self, action: str, *args: Any) -> Any:
        self.send(action, *args)
        return getattr(self, action)(*args)

    @torch.no_grad()
    def follow(self) -> Weighting | None:
        """Do what the last stage says until it has decided."""
        while True:
            action, *args = self.send()
            if action == "end":
                self.untried = args[1]
                return args[0]
            if action == "refuse":
                raise args[0]
            getattr(self, action)(*args)

    def send(self, *message: Any) -> Any:
        """The last stage's message, on every stage."""
        broadcast_message = [message]
        dist.broadcast_object_list(broadcast_message, group_src=self.driver, group=self.group)
        return broadcast_message[0]


def make_trial(pipeline: Any) -> StagesTrial:
    module = with_loss(pipeline.module, pipeline.loss_module)
    outputs, last = partial(last_outputs, pipeline), pipeline.stages.owners[pipeline.stages.last]
    return StagesTrial(
        module, pipeline.loss, pipeline.world, outputs, pipeline.rounding(), group=pipeline.group,
        driver=last,
    )  # fmt: skip


def last_outputs(pipeline: Any, part: Batch) -> Any:
    """The last stage's outputs for a micro-batch; None on other stages."""
    stage_outputs, pipeline.probed = pipeline.stage_outputs_of(part), []
    for chunk in pipeline.chunks:
        chunk.eval()
    for work, _ in pipeline.forward_only(part, stage_outputs):
        work.wait()
    outputs, pipeline.probed = (*pipeline.probed, None)[0], None
    return outputs
