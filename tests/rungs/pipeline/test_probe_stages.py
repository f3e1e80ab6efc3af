"""A stage that cannot run is every rank's error, at once and in one line."""

import torch

from stepladder.train import climb
from tests.ranks import run

from .chains import Answering, Shuffled, tokens
from .chains import numbers as rows_of_numbers


class Detached(Answering):
    """Reads a table of the first stage on the last, in a way that no gradient shows."""

    def forward(self, tokens):
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden @ self.table.weight.detach().T


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
    first, second = run(raised, 2, Detached, tokens(1)[0], init=False)
    assert first == second and first.startswith("ModelError: layout.pipeline: 'weight' of 'table'")


def test_an_error_of_one_stage_is_one_line_on_the_others():
    first, second = run(raised, 2, Failing, rows_of_numbers(1)[0], init=False)
    assert second == "ValueError: no such number"
    assert first == (
        "ModelError: layout.pipeline: stage 1 cannot run (ValueError: no such number). "
        "Its rank's own error says where; see whether the module runs with pipeline=1."
    )
