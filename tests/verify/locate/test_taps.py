"""What hooks hand over: inputs, outputs and gradients, each forward pass once."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stepladder.verify.locate.sites import Site
from stepladder.verify.locate.taps import Taps


class Twice(nn.Module):
    """A shared layer, called twice, within a block that is recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = checkpoint(lambda y: self.layer(torch.relu(self.layer(y))), x, use_reentrant=False)
        return {"out": self.head(hidden)}


def watched(module):
    noted = {}

    def note(site, micro, tensor):
        assert (site, micro) not in noted, "each forward pass is noted once"
        noted[site, micro] = tensor

    return Taps(module.named_modules(), note), noted


def test_each_call_is_noted_once_though_its_block_is_recomputed():
    module = Twice()
    taps, noted = watched(module)
    with taps.during(4):
        made = module(torch.ones(2, 3))
        made["out"].sum().backward()
    expected = {
        *(Site("input", "layer", call, "input") for call in (0, 1)),
        *(Site(kind, "layer", call) for kind in ("output", "output gradient") for call in (0, 1)),
        *(Site("input", "", 0, "x"), Site("input", "head", 0, "input")),
        *(Site("output", "head"), Site("output gradient", "head")),
        *(Site("output", "", 0, "out"), Site("output gradient", "", 0, "out")),
    }
    assert noted.keys() == {(site, 4) for site in expected}
    assert torch.equal(noted[Site("output gradient", "head"), 4], torch.ones(2, 1))


def test_who_called_and_who_was_given_a_result_are_known():
    module = Twice()
    taps, _ = watched(module)
    with taps.during(0):
        module(torch.ones(2, 3))
    assert taps.callers == {("", 0): "", ("layer", 0): "", ("layer", 1): "", ("head", 0): ""}
    assert taps.takers == {
        Site("output", "layer", 1): "head",
        Site("output", "head"): "loss",
        Site("output", "", 0, "out"): "loss",
    }


def test_trials_outside_of_a_micro_batch_and_without_gradients_are_not_noted():
    module = Twice()
    taps, noted = watched(module)
    module(torch.ones(2, 3))
    with taps.during(0), torch.no_grad():
        module(torch.ones(2, 3))
    assert not noted
