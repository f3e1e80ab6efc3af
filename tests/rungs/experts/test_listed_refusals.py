"""What cannot be spread of experts in a list is refused by a line that names it."""

import pytest
import torch
from torch import nn

from stepladder.errors import StepladderError
from stepladder.train import climb
from tests.ranks import run

from .listed_mixtures import EXPERTS, WIDTH, Expert, Masked, Mixture
from .test_listed_experts import start

LEAVE = "Leave experts out: zero3 slices such experts too."
ALIKE = "Make them alike and whole, or leave experts out: zero3 slices such experts too."


class Wider(Masked):
    def __init__(self):
        super().__init__()
        self.experts[2].up = nn.Linear(WIDTH, 16)


class Tied(Masked):
    def __init__(self):
        super().__init__()
        self.experts[1].up.weight = self.experts[0].up.weight


class Counting(Masked):
    def __init__(self):
        super().__init__()
        for expert in self.experts:
            expert.register_buffer("rows", torch.zeros(()))


class Scaled(Masked):
    def __init__(self):
        super().__init__()
        for expert in self.experts:
            expert.scale = nn.Parameter(torch.ones(()))


class Chained(Mixture):
    def forward(self, hidden):
        for expert in self.experts:
            hidden = hidden + expert(hidden)
        return hidden


class Reading(Mixture):
    def forward(self, hidden):
        return sum(expert(hidden) * expert.up.bias.sum() for expert in self.experts)


class TwoGiven(Mixture):
    def forward(self, hidden):
        return sum(expert(hidden, self.gate(hidden)) for expert in self.experts)


class Centred(Expert):
    def forward(self, hidden):
        return super().forward(hidden - hidden.mean(0))


class Mixing(Masked):
    def __init__(self):
        super().__init__(Centred)


class Summing(Expert):
    def forward(self, hidden):
        return super().forward(hidden).sum(0)


class Summed(Masked):
    def __init__(self):
        super().__init__(Summing)


class TwoLists(Masked):
    def __init__(self):
        super().__init__()
        self.more_experts = nn.ModuleList(Expert() for _ in range(EXPERTS))


class Changing(Mixture):
    """Other rows in the second pass than in the first."""

    def forward(self, hidden):
        OUTSIDE.append(1)
        return sum(expert(hidden * len(OUTSIDE)) for expert in self.experts)


OUTSIDE = []


class Around(nn.Module):
    """Calls an expert of a mixture that does not run."""

    def __init__(self):
        super().__init__()
        self.mixture = Masked()

    def forward(self, hidden):
        return self.mixture(hidden) + sum(expert(hidden) for expert in self.mixture.experts)


class Odd(Masked):
    """Every second call with rows of another type."""

    def forward(self, hidden):
        return sum(
            expert(hidden.double() if index == 1 else hidden).float()
            for index, expert in enumerate(self.experts)
        )


def refused(kind, words="fp32 experts=2", optimizer="sgd lr=0.1"):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), kind(), nn.Linear(WIDTH, 2))
    rows = torch.randn(4, WIDTH), torch.tensor([0, 1, 0, 1])
    try:
        trained = climb(
            model, loss="cross_entropy", plan=words, device="cpu", optimizer=optimizer, sample=rows
        )
        trained.step(rows, rows="global").read()
    except StepladderError as problem:
        return str(problem).splitlines()[0]
    return "nothing was refused"


OTHERWISE = (
    "'1.experts': are called otherwise when their results are not zero: what one is called with "
    f"depends on another's results, or on what changes from pass to pass. {LEAVE}"
)
CASES = [
    (
        Wider,
        "'1.experts.2.up.weight': is (16, 8) of float32, and '1.experts.0.up.weight' is (12, 8) "
        f"of float32. {ALIKE}",
    ),
    (
        Tied,
        "'1.experts.1.up.weight': is the same parameter as '1.experts.0.up.weight'. " + ALIKE,
    ),
    (
        Counting,
        "'1.experts.0.rows': is a buffer of an expert, which would see the rows of other ranks. "
        + ALIKE,
    ),
    (
        Scaled,
        "'1.experts.0.scale': is an expert's parameter of shape (), which ranks cannot slice. "
        + ALIKE,
    ),
    (Chained, OTHERWISE),
    (Changing, OTHERWISE),
    (Reading, f"'1.experts.0': '1' reads 'up' of it, and another rank may hold it. {LEAVE}"),
    (
        TwoGiven,
        "'1.experts.0': is called with Tensor, Tensor, and one tensor of rows can be sent to its "
        f"rank. {LEAVE}",
    ),
    (
        Mixing,
        "'1.experts.0': gives a row another result beside other rows, which ranks would mix. "
        + LEAVE,
    ),
    (Summed, f"'1.experts.0': gives (8,) for 6 rows, and not a row for each. {LEAVE}"),
    (
        TwoLists,
        "'1.more_experts': and '1.experts' are both called by '1'. Give each a module of its own.",
    ),
    (
        Odd,
        "'1.experts.1': is called with rows of 8 numbers of float64 and with rows of 8 numbers of "
        f"float32. {LEAVE}",
    ),
]


def each_refusal(plan):
    return [refused(kind, plan) for kind, _ in CASES]


def test_what_cannot_be_spread_is_refused_on_every_rank():
    for said in run(each_refusal, 2, "fp32 experts=2"):
        assert said == [line for _, line in CASES]


def other_refusals():
    return refused(Masked, "fp32 experts=2", "muon lr=0.02"), refused(Around)


def test_what_such_experts_cannot_be_beside_is_refused():
    for place, (muon, around) in enumerate(run(other_refusals, 2)):
        assert muon == (
            "optimizer: muon shares out matrices that all ranks know of, and other ranks have "
            f"other experts in the place of '1.experts.{2 * place}.up.weight'. Use adamw, or "
            "stack the experts, as transformers does."
        )
        assert around == (
            f"'1.mixture.experts.{2 - 2 * place}': is called outside the forward of '1.mixture', "
            f"and another rank holds it. {LEAVE}"
        )


def cut():
    try:
        start("Masked", "fp32 experts=2 tensor=2")
    except StepladderError as problem:
        return str(problem).splitlines()[0]


@pytest.mark.soak
def test_tensor_parallelism_beside_such_experts_is_refused():
    said = (
        "layout.tensor: 'blocks.0.mixture.experts' holds experts as modules, which 2 ways "
        "would cut. Use tensor=1 beside experts=, or stack them, as transformers does."
    )
    assert run(cut, 4) == [said] * 4
