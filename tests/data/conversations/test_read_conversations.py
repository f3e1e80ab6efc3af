"""Conversations from JSON lines, in the forms that people have them."""

import json

import pytest

from stepladder.data.conversations.read_conversations import read_conversations
from stepladder.errors import DataError


def written(tmp_path, *records):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records))
    return path


def turns_of(tmp_path, record):
    (found,) = read_conversations(written(tmp_path, record, ""))
    return [(turn.role, turn.content) for turn in found.turns]


ASKED = [("user", "2 + 2?"), ("assistant", "4")]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": role, "content": text} for role, text in ASKED]},
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"prompt": "2 + 2?", "response": "4"},
        {"prompt": "2 + 2?", "completion": "4"},
        {"instruction": "2 + 2?", "output": "4", "input": ""},
    ],
)
def test_each_form_is_a_question_and_its_answer(tmp_path, record):
    assert turns_of(tmp_path, record) == ASKED


def test_an_input_stands_below_its_instruction(tmp_path):
    record = {"instruction": "Add.", "input": "2 and 2", "output": "4"}
    assert turns_of(tmp_path, record)[0] == ("user", "Add.\n\n2 and 2")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ("{", "line 1 of .* is not JSON"),
        ("[1]", "line 1 of .* is no JSON object"),
        ({"text": "words"}, "has the keys 'text', and no prompt and answer"),
        ({"messages": "words"}, "has messages that are no list"),
        ({"messages": [{"role": "user"}]}, "has a message without a role and a text"),
        ({"messages": [{"role": "user", "content": "?"}]}, "no message of the assistant to learn"),
        ("", "has no line to learn from"),
    ],
)
def test_a_line_that_cannot_be_learned_is_named(tmp_path, record, said):
    with pytest.raises(DataError, match=said):
        read_conversations(written(tmp_path, record))
