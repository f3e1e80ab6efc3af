"""What compression still owes: the part of earlier gradients that has not travelled yet.

Without it a resumed run would lose those gradients and begin its factors anew, and part from the
run that went on. Each rank owes another part, kept beside its generators. A run on other ranks
takes the mean of all: added up over its ranks, as every gradient is, it is what was owed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.checkpoint import CheckpointReader, Manifest
from stepladder.rungs import Climbed
from stepladder.train.engine import Engine

FACTOR, MISSED = "compress/factor/", "compress/missed/"


def read_error_feedback(climbed: Climbed) -> dict[str, Tensor]:
    """Copies of this rank's factors and of what their products missed."""
    compression = climbed.forward_backward.gradient_sync.compression
    if compression is None:
        return {}
    names: dict[Tensor, str] = {p: name for name, p in climbed.module.named_parameters()}
    kinds = ((FACTOR, compression.factors), (MISSED, compression.missed))
    return {
        f"{kind}{names[parameter]}": value.detach().to("cpu", copy=True)
        for kind, values in kinds
        for parameter, value in values.items()
    }


def set_error_feedback(run: Engine, manifest: Manifest, reader: CheckpointReader) -> None:
    """Go on with what was owed; say so where this plan has no use for it."""
    files = sorted(name for name in manifest.files if name.startswith("rank-"))
    if not files:
        return  # made from a model alone
    place, compression = run.world.place, run.climbed.forward_backward.gradient_sync.compression
    if manifest.ranks == place.num_ranks:
        files = files[place.rank : place.rank + 1]
    owed = [name for name in reader.file(files[0]).names() if name.startswith(MISSED)]
    if compression is None:
        if owed:
            run.events.append(
                f"gradients of {len(owed)} matrices that compression had not sent yet are lost: "
                f"the plan '{run.plan}' does not compress by factors"
            )
        return
    compression.factors.clear()
    compression.missed.clear()
    rank = run.plan.compress.rank
    named = dict(run.module.named_parameters())
    for key in owed:
        name = key.removeprefix(MISSED)
        parameter = named[name]
        kept = torch.stack([reader.file(file).tensor(key) for file in files]).mean(0)
        compression.missed[parameter] = kept.to(parameter.device)
        factor = reader.file(files[0]).tensor(FACTOR + name)
        if factor.shape[1] == rank:  # else the first step draws one of its own width
            compression.factors[parameter] = factor.to(parameter.device, copy=True)
