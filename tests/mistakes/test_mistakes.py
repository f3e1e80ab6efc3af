"""Over 150 mistakes of users, in Python and on the command line: each is a line with a way out.

A key of the tables is what the line must say: the field and the problem. What stands in brackets
at its end only tells two alike apart.
"""

import re
import warnings

import pytest
from torch.utils.data import DataLoader

import stepladder as sl
from stepladder.cli.main import main
from stepladder.errors import StepladderError

from .of_commands import COMMANDS, FILES
from .of_planning import BEFORE_A_RUN
from .of_training import DATA, TRAINING, climb

IN_PYTHON = {**TRAINING, **BEFORE_A_RUN}
LINE = re.compile(r"[^:\n]+: \S.*[.?\])]$")  # a field, what is so, and an end


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def users_folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("users")
    for name, text in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    return made


def test_there_are_enough_of_them():
    assert len(IN_PYTHON) + len(COMMANDS) >= 150


@pytest.mark.parametrize("said", IN_PYTHON)
def test_a_mistake_in_python_is_one_line_with_a_way_out(said, folder):
    with pytest.raises(StepladderError) as refused:
        IN_PYTHON[said]()
    lines = str(refused.value).splitlines()
    assert re.sub(r" \(\w+\)$", "", said) in lines[0], lines
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert refused.value.field and refused.value.remedy


@pytest.mark.parametrize("words", COMMANDS)
def test_a_mistake_in_a_command_is_one_line_with_a_way_out(
    words, users_folder, monkeypatch, capsys
):
    monkeypatch.chdir(users_folder)
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("Using ")]
    assert any(COMMANDS[words] in line for line in lines), lines
    assert all(LINE.fullmatch(line) for line in lines), lines
    assert not any(word in captured.err for word in ("Traceback", "usage:", "In your code"))


def test_a_loader_that_ends_before_the_steps_is_told():
    with pytest.warns(UserWarning, match="the batches ended at step 2 of 5. For another epoch"):
        assert len(list(sl.fit(climb(), DataLoader(DATA, batch_size=4), steps=5))) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(sl.fit(climb(), DataLoader(DATA, batch_size=4), steps=2))) == 2
