"""What stands beside a user's model is used, and said; what is named comes first."""

import pytest
import torch

from stepladder.errors import StepladderError
from stepladder.train.user_code.trace_user_model import trace_user_model
from stepladder.train.user_code.user_code import UserCode

OWN = """\
import torch
from torch import nn


def make():
    return nn.Linear(4, 2)


def data():
    return torch.arange(80.0).reshape(20, 4), torch.arange(20) % 2


def batch():
    return torch.randn(8, 4), torch.randint(0, 2, (8,))


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


class Weighted(nn.Module):
    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


def labelled():
    return [{"input": torch.zeros(4), "labels": torch.tensor(0)}] * 20


def split():
    return [torch.zeros(4)] * 6, [torch.zeros(4)] * 2


def loader():
    return torch.utils.data.DataLoader(labelled())


def ragged():
    return torch.zeros(3, 4), torch.zeros(2)


def word():
    return "tokens.bin"
"""


@pytest.fixture(autouse=True)
def files(folder):
    (folder / "own.py").write_text(OWN)
    (folder / "alone.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.ReLU()\n")


def test_data_and_loss_beside_the_model_are_used_and_said():
    code = UserCode("own.py:make").complete()
    assert (code.data, code.sample, code.loss) == ("own.py:data", "", "own.py:loss")
    assert code.taken == "Using data and loss of own.py."
    training, validation = code.samples()
    assert (len(training), len(validation)) == (18, 2)
    assert training[0][0].shape == (4,) and code.read_loss(training).__name__ == "loss"


def test_what_is_named_comes_before_what_stands_beside():
    code = UserCode("own.py:make", sample="own.py:batch", loss="squared_error").complete()
    training, validation = code.samples()
    assert training is validation and len(training) == 8 and code.taken == ""
    assert code.read_loss(training) == "squared_error"


def test_a_pair_of_sources_is_training_and_validation():
    training, validation = UserCode("own.py:make", data="own.py:split").samples()
    assert (len(training), len(validation)) == (6, 2)


def test_a_loss_is_a_function_a_module_a_name_or_the_modules_own():
    rows = [(torch.zeros(4), 0)]
    assert isinstance(UserCode("m", loss="own.py:Weighted").read_loss(rows), torch.nn.Module)
    assert UserCode("m", loss="own").read_loss(rows) is None
    assert UserCode("m").read_loss(rows) == "cross_entropy"
    labelled = UserCode("own.py:make", data="own.py:labelled")
    assert labelled.read_loss(labelled.samples()[0]) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"sample": "own.py:batch", "data": "own.py:data"},
            "sample: own.py:batch is one batch that stands in for data, and data is named too. "
            "Leave one of them out.",
        ),
        (
            {"sample": "batch"},
            "sample: 'batch' does not name a batch of yours. "
            "Write file.py:name or package.module:name.",
        ),
        (
            {"sample": "own.py:ragged"},
            "sample: own.py:ragged is no batch (its tensors have different numbers of rows: "
            "(3, 4), (2,)). A row is one sample, and the first dimension of every tensor counts "
            "them: put it first (batch_first=True), and pad samples of unequal shape.",
        ),
        (
            {"data": "own.py:word"},
            "data: own.py:word cannot be read ('tokens.bin' is a path, not samples). Open it: ",
        ),
        (
            {"data": "own.py:loader"},
            "data: own.py:loader is a DataLoader, and the plan decides who reads which rows. "
            "Return its dataset.",
        ),
        (
            {"model": "alone.py:make"},
            "data: alone.py:make is a module without samples, and its file has no data or batch. "
            "Name some: --data, or --sample for one batch.",
        ),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line(words, message):
    with pytest.raises(StepladderError) as caught:
        UserCode(**{"model": "own.py:make", **words}).complete().training_samples()
    assert str(caught.value).startswith(message)


def test_the_planner_sees_the_module_on_one_row_of_its_samples():
    facts = trace_user_model(UserCode("own.py:make").complete())
    assert (facts.name, facts.parameters) == ("Linear", 10)
