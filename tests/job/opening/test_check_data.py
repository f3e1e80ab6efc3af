"""A model that cannot read a recipe's data is refused in one line, before the first step."""

import pytest
import torch
from torch import nn

from stepladder.cli.main import main
from stepladder.data import Batch
from stepladder.errors import PlanError
from stepladder.job.opening.check_data import reading_problem
from stepladder.model import build

TOKENS = Batch.of((torch.zeros(1, 16, dtype=torch.long),) * 2, position=0, size=1)
DIGIT = Batch.of((torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)), position=0, size=1)
READS = {
    "gpt-tiny": TOKENS, "llama-tiny": TOKENS, "mlp-tiny": DIGIT, "resnet-tiny": DIGIT,
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_a_built_in_model_reads_its_own_kind_of_data_and_no_other(name):
    module = build(name)
    assert reading_problem(module, READS[name]) == ""
    other = DIGIT if READS[name] is TOKENS else TOKENS
    assert reading_problem(module, other) != ""


class Pretrained(nn.Linear):
    class config:
        vocab_size = 100


def test_of_another_module_only_the_kind_of_its_inputs_is_known():
    assert reading_problem(Pretrained(2, 2), DIGIT) == "it reads tokens"
    assert reading_problem(Pretrained(2, 2), TOKENS) == ""
    assert reading_problem(nn.Linear(2, 2), DIGIT) == ""


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (
            "gpt-tiny",
            "digits",
            "a sample of 'digits' is float32 of shape (1, 8, 8), which gpt-tiny",
        ),
        (
            "resnet-tiny",
            "python",
            "a sample of 'python' is int64 of shape (128,), which resnet-tiny",
        ),
    ],
)
def test_training_refuses_it_with_the_way_out(model, data, said, tmp_path, capsys):
    words = ["--model.name", model, "--data.source", data, "--train.device", "cpu"]
    assert main(["train", *words, "--run.folder", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error and "cannot read (" in error
    assert "Choose a model for this data, or data for this model." in error


def test_a_sequence_that_no_memory_holds_is_refused_at_once():
    with pytest.raises(PlanError, match="one of its parameters has .* GiB, and this machine has"):
        build("gpt-tiny", sequence=10**11)
