"""What of a batch a module is given: of a dict, what its forward names, or all of it in one piece.

A DataLoader's dicts often hold more than a forward takes: what only the loss compares, or the names
of the samples. What is left out is reported once, unless a loss of the user's is given it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from stepladder.data import Batch
from stepladder.data.batch import TARGET_KEYS
from stepladder.model.forward_arguments import ForwardArguments
from stepladder.rungs.trial_rows import samples_of

from .step_batch import as_batch


def arranged_sample(sample: Any, model: nn.Module, loss: Any) -> Batch | None:
    """A user's sample batch as the module takes it; None where none is given."""
    return None if sample is None else ModuleInputs.of(model, loss).arrange(as_batch(sample, 0))


@dataclass(frozen=True, slots=True)
class ModuleInputs:
    """How a module takes the batches that it is given."""

    owner: str = ""  # the module's class
    arguments: ForwardArguments = ForwardArguments()
    whole: str = ""  # the keyword under which it takes a batch in one piece, targets included
    judged: bool = False  # by a function or module, which may compare with any part of a dict

    @classmethod
    def of(cls, module: nn.Module, loss: Any) -> ModuleInputs:
        owner, whole = type(module).__name__, getattr(module, "whole_batch", "")
        return cls(owner, ForwardArguments.of(module), whole, callable(loss))

    def arrange(self, batch: Batch, events: list[str] | None = None) -> Batch:
        """The batch as the module takes it, and its loss; what neither is given is an event."""
        if self.whole:
            return self.in_one_piece(batch)
        if not isinstance(batch.inputs, dict):
            return batch
        compared = batch.inputs if batch.targets is None and self.judged else batch.targets
        made = replace(batch, inputs=self.arguments.chosen(batch.inputs), targets=compared)
        message = self.explain(batch, made)
        if message and events is not None and message not in events:
            events.append(message)
        return made

    def in_one_piece(self, batch: Batch) -> Batch:
        if isinstance(batch.inputs, dict) and set(batch.inputs) == {self.whole}:
            return batch
        return Batch.of(
            {self.whole: samples_of(batch)},
            position=batch.position,
            size=batch.size,
            skipped=batch.skipped,
            most_rows=batch.most_rows,
            idle=batch.idle,
        )

    def explain(self, given: Batch, made: Batch) -> str:
        """What of a dict nobody is given; empty where that is nothing."""
        before, after = given.inputs, made.inputs
        if not isinstance(after, dict) or made.targets is before:
            return ""
        left = [name for name in before if name not in after and name not in TARGET_KEYS]
        if not left:
            return ""
        what = ", ".join(f"'{name}'" for name in left)
        return f"batch: {self.owner}.forward takes no {what}, and is given the rest"
