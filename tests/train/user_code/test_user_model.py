"""A model of the user's own, built as a recipe asks."""

import json
from pathlib import Path

import pytest
import torch

from stepladder.cli.main import main
from stepladder.errors import StepladderError
from stepladder.plan.reference import Reference
from stepladder.train.user_code.user_model import build_user_model, model_reference

MODELS = """\
from __future__ import annotations

import torch
from torch import nn


class Wide(nn.Module):
    def __init__(self, sequence, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(8, 256)
        self.sequence = sequence

    def forward(self, tokens):
        return self.head(self.drop(self.embed(tokens)))


class Packs(Wide):
    def forward(self, tokens, documents=None, positions=None):
        return super().forward(tokens)


def make() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))


def needs(width: int) -> nn.Module:
    return nn.Linear(width, 1)


def breaks() -> nn.Module:
    return nn.Linear(2, 3)(torch.zeros(5))


def lies() -> nn.Module:
    return 7


made = nn.Identity()
"""


@pytest.fixture
def models(folder):
    (folder / "own_models.py").write_text(MODELS)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("package.models:make", True),
        ("models:Net", True),
        ("a/b.py:make", True),
        ("llama:layers=2", False),
        ("llama:layers", False),
        ("gpt-tiny", False),
        ("a/b.py:make()", False),
        ("__import__('os').mkdir('x')", False),
    ],
)
def test_a_file_or_module_and_a_name_are_the_users_own(text, own):
    reference = model_reference(text)
    assert (reference is not None) is own
    assert reference is None or str(reference) == text


def test_a_function_or_a_class_makes_the_same_module_for_the_same_seed(models):
    first, same, other = (
        build_user_model(Reference("own_models", "make"), seed=seed, sequence=16)[1].weight
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    wide = build_user_model(Reference("own_models", "Wide"), sequence=16, dropout=0.25)
    assert wide.sequence == 16 and wide.drop.p == 0.25


def test_drawing_its_values_leaves_the_callers_numbers_alone(models):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build_user_model(Reference("own_models", "make"), sequence=16)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "needs",
            "model: own_models:needs cannot be called by its name alone (missing a required "
            "argument: 'width'). Give its parameters defaults: only dropout, and a sequence if "
            "named, are given.",
        ),
        (
            "lies",
            "model: own_models:lies returned int, not a module. Return a torch.nn.Module.",
        ),
        (
            "made",
            "model: own_models:made is a module, and every process makes one for itself. "
            "Name a function or a class that makes it.",
        ),
    ],
)
def test_what_makes_no_module_is_told_in_a_line(models, name, message):
    with pytest.raises(StepladderError) as caught:
        build_user_model(Reference("own_models", name), sequence=16)
    assert str(caught.value) == message


def test_dropout_needs_a_parameter_of_that_name(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model(Reference("own_models", "make"), sequence=16, dropout=0.1)
    assert str(caught.value) == (
        "model.dropout: own_models:make has no parameter 'dropout'. "
        "Give it one, or leave model.dropout out."
    )


def test_weights_of_a_folder_are_refused_and_not_ignored(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model(Reference("own_models", "make"), sequence=16, weights="llama")
    assert str(caught.value) == (
        "model.weights: 'llama' is for a model that is a folder, and own_models:make gives its own "
        "values. Load them in it, or leave this out."
    )


def test_packed_rows_need_a_forward_that_takes_documents(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model(Reference("own_models", "Wide"), sequence=16, packed=True)
    assert str(caught.value) == (
        "data.packed: the forward of own_models:Wide takes no 'documents', by which packed rows "
        "are told apart. Give it tokens, documents and positions, or leave data.packed out."
    )
    assert build_user_model(Reference("own_models", "Packs"), sequence=16, packed=True)


def test_a_recipe_trains_a_model_of_the_users_own(models, capsys):
    Path("run.toml").write_text(
        '[model]\nname = "own_models:Wide"\nsequence = 16\n'
        '[train]\nsteps = 3\nbatch = 4\nevaluate_batches = 1\n[run]\nfolder = "out"\n'
    )
    assert main(["train", "run.toml", "--plan", "fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert 'name = "own_models:Wide"' in Path("out/run.toml").read_text()


@pytest.mark.parametrize("text", ["net.py", "net.py:"])
def test_a_file_alone_is_told_in_a_line(text):
    with pytest.raises(StepladderError) as caught:
        model_reference(text)
    assert str(caught.value) == (
        f"model: '{text}' is a file, and not what makes the module in it. "
        "Write net.py:make, with the function's name."
    )
