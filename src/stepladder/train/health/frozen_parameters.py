"""Parameters that were frozen when the run began: its optimizer has no place for them."""

from __future__ import annotations

from torch import nn

from stepladder.errors import ModelError

Frozen = tuple[tuple[str, nn.Parameter], ...]
MANY = 3  # names in a message


def frozen_parameters(module: nn.Module) -> Frozen:
    return tuple((name, p) for name, p in module.named_parameters() if not p.requires_grad)


def refuse_unfrozen(frozen: Frozen) -> None:
    """Refuse a step in which more would have to learn than the optimizer was made for."""
    thawed = [name for name, parameter in frozen if parameter.requires_grad]
    if thawed:
        more = f" and {len(thawed) - MANY} more" if len(thawed) > MANY else ""
        verb = "was" if len(thawed) == 1 else "were"
        raise ModelError(
            "module",
            f"{', '.join(thawed[:MANY])}{more} {verb} frozen when the run began and no longer, and "
            "the run's optimizer does not have what was frozen",
            "Call climb again with the module, or freeze it again.",
        )
