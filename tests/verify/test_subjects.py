"""What a comparison trains is the same in every process, or one line says why it is not."""

import pytest
import torch

from stepladder.errors import ModelError, PlanError
from stepladder.verify import find_subject

MAKE = """
import torch
def make():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5))
    return module, [torch.zeros(3)]
def alone():
    return torch.nn.Linear(3, 4)
word = 7
"""


def write(tmp_path, text=MAKE):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["llama-tiny", "mlp-tiny", "resnet-tiny"])
def test_a_built_in_model_is_made_alike_twice(name):
    (one, rows, loss), (other, again, _) = (find_subject(name).made() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(rows[5], again[5]))
    assert loss == "cross_entropy"


def test_a_users_function_is_called_with_the_same_seed_and_dropout_off(tmp_path):
    subject = find_subject(f"{write(tmp_path)}:make")
    (one, _, loss), (other, _, _) = subject.made(), subject.made()
    assert torch.equal(one[0].weight, other[0].weight)
    assert one[1].p == 0.0 and loss is None


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("alone", "returned Linear, not a module and its samples"),
        ("word", "has no function 'word'"),
        ("none", "has no function 'none'"),
    ],
)
def test_a_function_that_does_not_serve_says_why(tmp_path, function, said):
    with pytest.raises(ModelError, match=said):
        find_subject(f"{write(tmp_path)}:{function}").made()


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        find_subject(f"{tmp_path / 'no.py'}:make").made()
    broken = write(tmp_path, "import nothing_of_that_name")
    with pytest.raises(ModelError, match="cannot be imported .*nothing_of_that_name"):
        find_subject(f"{broken}:make").made()


def test_an_unknown_name_is_refused_before_anything_starts():
    with pytest.raises(PlanError, match="is not a known model"):
        find_subject("gtp2")
