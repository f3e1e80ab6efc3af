"""What a comparison trains is the same in every process, or one line says why it is not."""

import pytest
import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.train.user_code.user_code import UserCode
from stepladder.verify import Subject, find_subject

MAKE = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
def data():
    return [(torch.zeros(3), torch.tensor(index % 4)) for index in range(10)]
def tokens():
    return torch.zeros(5, 8, dtype=torch.long), torch.zeros(5, 8, dtype=torch.long)
"""


@pytest.mark.parametrize("name", ["llama-tiny", "mlp-tiny", "resnet-tiny"])
def test_a_built_in_model_is_made_alike_twice(name):
    (one, rows, loss), (other, again, _) = (find_subject(name).made() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(rows[5], again[5]))
    assert loss == "cross_entropy"


@pytest.fixture
def path(tmp_path):
    written = tmp_path / "mine_to_verify.py"
    written.write_text(MAKE)
    return written


def test_a_users_function_is_called_with_the_same_seed_and_dropout_off(path):
    subject = find_subject(f"{path}:make")
    assert subject.taken == f"Using data of {path}."
    (one, rows, loss), (other, _, _) = subject.made(), subject.made()
    assert torch.equal(one[0].weight, other[0].weight)
    assert one[1].p == 0.0 and (len(rows), loss) == (9, "cross_entropy")


def test_a_built_in_model_reads_the_users_samples(path):
    _, rows, _ = find_subject(UserCode("gpt-tiny", sample=f"{path}:tokens")).made()
    assert len(rows) == 5


def test_an_unknown_name_is_refused_before_anything_starts():
    with pytest.raises(PlanError, match="is not a known model"):
        find_subject("gtp2")


def test_dropout_within_attention_and_recurrent_layers_is_turned_off_too():
    def make():
        attention = nn.MultiheadAttention(4, 2, dropout=0.5)
        return nn.ModuleList([attention, nn.LSTM(4, 4, 2, dropout=0.5)]), None, None

    assert [part.dropout for part in Subject("net", make).made()[0]] == [0.0, 0.0]
    assert [part.dropout for part in Subject("net", make, dropout=True).made()[0]] == [0.5, 0.5]
