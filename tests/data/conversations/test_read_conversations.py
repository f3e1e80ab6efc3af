"""Conversations from JSON lines, in the forms that people have them."""

import json

import numpy as np
import pytest

from stepladder.data.conversations.encode_conversations import ConversationEncoder
from stepladder.data.conversations.preference_rows import PreferenceRows
from stepladder.data.conversations.read_conversations import (
    holds_preferences,
    read_conversations,
    read_preferences,
)
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
        ({"prompt": 1, "response": 4}, "a 'prompt' that is no text but int and has a 'response'"),
        ({"prompt": "?", "chosen": "!"}, "has 'chosen' and no 'rejected': a preference has both"),
        ({"prompt": "?", "chosen": "a", "rejected": "b"}, "and the first line .* a conversation"),
        ({"messages": "words"}, "has messages that are no list"),
        ({"messages": [{"role": "user"}]}, "has a message without a role and a text"),
        ({"messages": [{"role": "user", "content": "?"}]}, "no message of the assistant to learn"),
        ("", "has no line to learn from"),
        ({"instruction": "?", "input": 5, "output": "!"}, "line 1 .* has an input that is no text"),
        ('{"prompt": "?", "response": "\\ud800"}', "line 1 .* half of a surrogate pair"),
    ],
)
def test_a_line_that_cannot_be_learned_is_named(tmp_path, record, said):
    with pytest.raises(DataError, match=said):
        read_conversations(written(tmp_path, record))


def test_a_role_may_be_written_in_capitals(tmp_path):
    turns = turns_of(tmp_path, {"messages": [said("Human", "2 + 2?"), said("Assistant", "4")]})
    assert [role for role, _ in turns] == ["user", "assistant"]


def said(role, content):
    return {"role": role, "content": content}


EARLIER = [said("user", "hi"), said("assistant", "hello"), said("user", "2 + 2?")]
GOOD, BAD = [said("assistant", "4")], [said("assistant", "5")]


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": EARLIER, "chosen": GOOD, "rejected": BAD},
        {"prompt": EARLIER, "chosen": "4", "rejected": "5"},
        {"chosen": EARLIER + GOOD, "rejected": EARLIER + BAD},
    ],
)
def test_two_answers_have_one_beginning_of_which_nothing_is_learned(tmp_path, record):
    path = written(tmp_path, record)
    assert holds_preferences(path)
    ((chosen, rejected),) = read_preferences(path)
    assert [turn.content for turn in chosen.turns] == ["hi", "hello", "2 + 2?", "4"]
    assert [turn.content for turn in rejected.turns] == ["hi", "hello", "2 + 2?", "5"]
    assert chosen.known_answers == rejected.known_answers == 1
    ids, learned = ConversationEncoder.open("bytes", 256).encode(chosen)
    assert bytes(ids[learned].tolist()) == b" 4\n"


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": GOOD, "rejected": BAD},
        {"prompt": "2 + 2?", "chosen": "4"},
        {"prompt": "2 + 2?", "chosen": "4", "rejected": []},
        {"prompt": "2 + 2?", "chosen": "4", "rejected": "4"},
    ],
)
def test_a_line_without_two_answers_to_a_prompt_is_named(tmp_path, record):
    with pytest.raises(DataError, match="line 1 of .* has no prompt with two different answers"):
        read_preferences(written(tmp_path, record))


def test_an_empty_answer_of_two_is_named(tmp_path):
    record = {"prompt": "2 + 2?", "chosen": "4", "rejected": []}
    with pytest.raises(DataError, match=r"\('rejected' is empty\)"):
        read_preferences(written(tmp_path, record))


def test_conversations_are_no_preferences(tmp_path):
    assert not holds_preferences(written(tmp_path, {"prompt": "?", "response": "!"}))


def test_pairs_of_which_one_is_cut_off_are_left_out_and_counted():
    def encoded(size):
        return np.arange(size, dtype=np.int32), np.arange(size) >= size - 2

    rows = PreferenceRows([(encoded(6), encoded(5)), (encoded(6), encoded(40))], 8)
    assert len(rows) == 1 and rows.notes == [
        "1 preferences are longer than 8 tokens and were cut",
        "1 preferences have no two answers in 8 tokens: left out",
    ]
    (tokens, labels), reference = rows[0]
    assert tokens.shape == labels.shape == (2, 8) and reference.shape == (2,)
    assert labels[0].tolist() == [-100, -100, -100, 4, 5, -100, -100, -100]
    assert rows.where(0) == "pair 0 of preferences"
    with pytest.raises(DataError, match="none of 1 preferences has two answers in its first 8"):
        PreferenceRows([(encoded(6), encoded(40))], 8)
