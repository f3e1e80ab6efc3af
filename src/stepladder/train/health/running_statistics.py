"""Running statistics of a module's layers, kept as they last were sound.

A batch that is not finite is left out of the parameters by the device itself, but a normalisation
has by then mixed it into its running mean, which would stay what it is for ever: training goes on,
for it does not use the mean, and every evaluation is lost. So under a policy that goes on after
such a batch the statistics are kept whenever somebody looks at how steps went, and what is not
finite is put back. Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Statistics:
    def __init__(self, module: nn.Module) -> None:
        self.sound = {name: buffer.clone() for name, buffer in changing(module).items()}

    @torch.no_grad()
    def mend(self, module: nn.Module) -> None:
        """Put back what is not finite, and keep the rest."""
        for name, now in changing(module).items():
            good = torch.where(now.isfinite(), now, self.sound[name])
            now.copy_(good)
            self.sound[name] = good


def changing(module: nn.Module) -> dict[str, Tensor]:
    """A module's running means and variances."""
    return {
        f"{name}.{kind}": buffer
        for name, layer in module.named_modules()
        for kind in ("running_mean", "running_var")
        if isinstance(buffer := getattr(layer, kind, None), Tensor)
    }
