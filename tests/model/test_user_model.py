"""A model of the user's own, named in a recipe."""

import json
import sys
from pathlib import Path

import pytest
import torch

from stepladder.cli.main import main
from stepladder.errors import StepladderError
from stepladder.model.user_model import build_user_model, is_user_model

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


def silent():
    raise SystemError("called")


def needs(width: int) -> nn.Module:
    return nn.Linear(width, 1)


def breaks() -> nn.Module:
    return nn.Linear(2, 3)(torch.zeros(5))


def lies() -> nn.Module:
    return 7
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A module in the working folder that no other test has imported."""
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "own_broken.py").write_text("import own_missing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield tmp_path
    sys.modules.pop("own_models", None)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("package.models:make", True),
        ("models:Net", True),
        ("llama:layers=2", False),
        ("llama:layers", False),
        ("gpt-tiny", False),
        ("a/b.py:make", False),
        ("__import__('os').mkdir('x')", False),
    ],
)
def test_a_dotted_name_and_a_function_are_the_users_own(text, own):
    assert is_user_model(text) is own


def test_a_function_or_a_class_makes_the_same_module_for_the_same_seed(models):
    first, same, other = (
        build_user_model("own_models:make", seed=seed, sequence=16)[1].weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    wide = build_user_model("own_models:Wide", sequence=16, dropout=0.25)
    assert wide.sequence == 16 and wide.drop.p == 0.25


def test_drawing_its_values_leaves_the_callers_numbers_alone(models):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    build_user_model("own_models:make", sequence=16)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "own_models:mak",
            "model: own_models has no 'mak'. Did you mean 'make'?",
        ),
        (
            "own_models:silent",
            "model: own_models:silent does not say that it makes a module. "
            "Write 'def silent(…) -> torch.nn.Module:', or name a class of modules.",
        ),
        (
            "own_models:needs",
            "model: own_models:needs cannot be called by its name alone (missing a required "
            "argument: 'width'). Only sequence and dropout are given: the rest needs defaults.",
        ),
        ("own_models:lies", "model: own_models:lies returned int, not a module. Return a "),
        ("own_models:breaks", "model: own_models:breaks failed (RuntimeError: "),
        (
            "own_models.py:make",
            "model: 'own_models.py' is a file, and a model is named by its module. "
            "Write own_models:make.",
        ),
        (
            "os:abort",
            "model: 'os' is a module of Python's own, which makes no models. Name one of yours.",
        ),
        (
            "own_model.inner:make",
            "model: there is no module 'own_model', neither installed nor in this folder. "
            "Check its name.",
        ),
        (
            "own_broken:make",
            "model: own_broken cannot be imported (ModuleNotFoundError: No module named "
            "'own_missing' (own_broken.py:1)). Mend it.",
        ),
    ],
)
def test_what_cannot_be_a_model_is_told_in_a_line(models, text, message):
    with pytest.raises(StepladderError) as caught:
        build_user_model(text, sequence=16)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_dropout_needs_a_parameter_of_that_name(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model("own_models:make", sequence=16, dropout=0.1)
    assert str(caught.value) == (
        "model.dropout: own_models:make has no parameter 'dropout'. "
        "Give it one, or leave model.dropout out."
    )


def test_weights_of_a_folder_are_refused_and_not_ignored(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model("own_models:make", sequence=16, weights="llama")
    assert str(caught.value) == (
        "model.weights: 'llama' is for a model that is a folder, and own_models:make gives its own "
        "values. Load them in it, or leave this out."
    )


def test_packed_rows_need_a_forward_that_takes_documents(models):
    with pytest.raises(StepladderError) as caught:
        build_user_model("own_models:Wide", sequence=16, packed=True)
    assert str(caught.value) == (
        "data.packed: the forward of own_models:Wide takes no 'documents', by which packed rows "
        "are told apart. Give it tokens, documents and positions, or leave data.packed out."
    )
    assert build_user_model("own_models:Packs", sequence=16, packed=True)


def test_a_recipe_trains_a_model_of_the_users_own(models, capsys):
    Path("run.toml").write_text(
        '[model]\nname = "own_models:Wide"\nsequence = 16\n'
        '[train]\nsteps = 3\nbatch = 4\nevaluate_batches = 1\n[run]\nfolder = "out"\n'
    )
    assert main(["train", "run.toml", "--plan", "fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    assert 'name = "own_models:Wide"' in Path("out/run.toml").read_text()
