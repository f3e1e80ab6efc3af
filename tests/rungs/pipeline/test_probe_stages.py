"""A stage that cannot run is every rank's error, at once and in one line."""

import torch

from stepladder.train import climb
from tests.ranks import run

from .chains import Shuffled
from .chains import numbers as rows_of_numbers


class Peeking(Shuffled):
    """Reads a bias of its entry after its blocks, and only in evaluation."""

    def forward(self, x):
        hidden = super().forward(x)
        return hidden if self.training else hidden + self.enter.bias.mean()


class Failing(Shuffled):
    """Its end raises on real numbers, which no drawing has."""

    def forward(self, x):
        hidden = super().forward(x)
        if type(hidden) is torch.Tensor:
            raise ValueError("no such number")
        return hidden


def raised(kind, batch):
    """What a rank raises at its first step."""
    torch.manual_seed(0)
    model = kind()
    try:
        taken = climb(
            model, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32 pipeline=2 micro=4",
            device="cpu", sample=batch,
        )  # fmt: skip
        taken.step(batch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_refusal_of_one_stage_is_raised_by_all():
    first, second = run(raised, 2, Peeking, rows_of_numbers(1)[0], init=False)
    assert first == second and first.startswith("ModelError: layout.pipeline: 'bias' of 'enter'")


def test_an_error_of_one_stage_is_one_line_on_the_others():
    first, second = run(raised, 2, Failing, rows_of_numbers(1)[0], init=False)
    assert second == "ValueError: no such number"
    assert first == (
        "ModelError: layout.pipeline: stage 1 cannot run (ValueError: no such number). "
        "Its rank's own error says where; see whether the module runs with pipeline=1."
    )
