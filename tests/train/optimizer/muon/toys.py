"""Runs that the tests of Muon share: a small Llama or GPT on tokens, whole and on ranks."""

from contextlib import nullcontext
from unittest.mock import patch

import torch
from torch.distributed.tensor import DTensor

from stepladder.planner.time.orthogonalise_time import OrthogonaliseRates
from stepladder.train import climb
from stepladder.train.optimizer.muon import make_muon
from tests.train.toys import gpt, llama

MUON = "muon lr=0.02 adamw_lr=1e-2 wd=0.1 clip=1"
NORMUON = "muon lr=1e-3 adamw_lr=1e-2 variant=normuon adjust=match_rms_adamw nesterov=off"
LINKS = {  # by whom a forecast has matrices computed
    "one": OrthogonaliseRates(1.0, 1e30, 0.0),
    "each copy": OrthogonaliseRates(1e30, 1.0, 0.0),
    "everyone": OrthogonaliseRates(1e30, 1e30, 1.0),
}


def make(name="llama", noise=0.3):
    """A model whose weights are not those of an initialisation, whose matrices are all alike."""
    module = {"llama": llama, "gpt": gpt}[name]()
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=draw))
    return module


def batch(step, rows=8):
    tokens = torch.randint(0, 64, (rows, 17), generator=torch.Generator().manual_seed(step))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def begin(plan, optimizer=MUON, name="llama", noise=0.3, sharing="one"):
    """A run whose matrices are computed as rates make it best; with none, as this machine's do."""
    with (
        patch.object(make_muon, "rates_of", lambda *_: LINKS[sharing]) if sharing else nullcontext()
    ):
        return climb(
            make(name, noise), loss="cross_entropy", optimizer=optimizer, plan=plan, device="cpu"
        )


def learn(plan, optimizer=MUON, steps=3, name="llama", sharing="one"):
    """Losses, and every parameter that this rank has, in full; who computes matrices."""
    run = begin(plan, optimizer, name, sharing=sharing)
    losses = [run.step(batch(step), rows="global").loss for step in range(steps)]
    return losses, whole(run.module), [one.owned for one in run.optimizer.work.rounds]


def whole(module):
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in module.named_parameters()
    }


def apart(mine, theirs):
    return max(((mine[name] - theirs[name]).norm() / theirs[name].norm()).item() for name in mine)
