"""Rows of whole conversations: what is learned of them, and how they are packed."""

import json

import numpy as np
import pytest
import torch

from stepladder.data import open_source
from stepladder.data.conversations.conversation_rows import ConversationRows, fill_rows
from stepladder.errors import DataError
from stepladder.plan.recipe import DataChoice

LENGTH = 12


def drawn(number, longest=LENGTH):
    """Conversations of numbered tokens that occur nowhere else, with a learned second half."""
    random, found, first = np.random.default_rng(0), [], 1
    for _ in range(number):
        size = int(random.integers(2, longest + 2))
        ids = np.arange(first, first + size, dtype=np.int32)
        found.append((ids, np.arange(size) >= size // 2))
        first += size
    return found


@pytest.mark.parametrize("packed", [False, True])
def test_every_answer_is_learned_once_after_the_tokens_before_it(packed):
    found = drawn(40)
    rows = ConversationRows(found, LENGTH, packed=packed)
    learned = []
    for index in range(len(rows)):
        inputs, targets = rows[index]
        tokens = inputs["tokens"] if packed else inputs
        for token, target in zip(tokens.tolist(), targets.tolist(), strict=True):
            if target != -100:
                learned.append(target)
                assert token == target - 1  # numbered one by one within a conversation
    wanted = [token for ids, answers in found for token in ids[1:][answers[1:]].tolist()]
    assert sorted(learned) == wanted


def test_packed_conversations_are_documents_that_begin_at_position_0():
    found = drawn(40)
    rows = ConversationRows(found, LENGTH, packed=True)
    firsts = {int(ids[0]) for ids, _ in found}
    inputs, _ = rows.fetch(np.arange(len(rows)))
    began = inputs["positions"] == 0
    assert set(inputs["tokens"][began].tolist()) - {0} == firsts
    assert (inputs["documents"][:, 1:] - inputs["documents"][:, :-1]).eq(began[:, 1:]).all()
    assert len(rows) < 0.75 * len(found)


def test_no_row_of_a_packing_could_take_in_another():
    sizes = np.random.default_rng(1).integers(1, 50, 300).tolist()
    rows = fill_rows(sizes, 64)
    assert sorted(one for row in rows for one in row) == list(range(300))
    totals = [sum(sizes[one] for one in row) for row in rows]
    assert max(totals) <= 64 and sum(sorted(totals)[:2]) > 64
    assert len(rows) <= 1.05 * sum(sizes) / 64 + 1


def test_what_is_too_long_is_cut_and_said():
    long, answered = np.arange(30, dtype=np.int32), np.zeros(30, bool)
    late, early = answered.copy(), answered.copy()
    late[25:], early[5:] = True, True
    rows = ConversationRows([(long, late), (long, early)], LENGTH, packed=False)
    assert len(rows) == 1
    assert rows.notes == [
        "2 conversations are longer than 12 tokens and were cut",
        "1 conversations have no answer in 12 tokens: left out",
    ]
    with pytest.raises(DataError, match="none of 1 conversations has an answer in its first 12"):
        ConversationRows([(long, late)], LENGTH, packed=True)


def test_answers_without_words_are_counted_and_named(tmp_path):
    path = tmp_path / "chat.jsonl"
    records = [{"prompt": f"{n}?", "response": " " if n < 3 else "yes"} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, records)))
    (note,) = opened(path, "training").notes
    assert "3 conversations of" in note and f"the first in line 1 of '{path}'" in note


def lines(path, numbers):
    records = [{"prompt": f"{n}?", "response": f"answer {n}"} for n in numbers]
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def answers_of(source):
    _, targets = source.fetch(np.arange(len(source)))
    return [bytes(row[row >= 0].tolist()).decode() for row in targets]


def opened(path, split, **choice):
    how = DataChoice(source=str(path), **choice)
    return open_source(how, length=24, vocabulary=256, split=split)


def test_a_tenth_of_a_file_is_for_validation(tmp_path):
    path = lines(tmp_path / "chat.jsonl", range(20))
    parts = [answers_of(opened(path, split)) for split in ("train", "validation")]
    assert [len(part) for part in parts] == [18, 2]
    assert sorted([*parts[0], *parts[1]]) == sorted(f"answer {n}\n" for n in range(20))
    with pytest.raises(DataError, match="holds one line, which cannot be trained and"):
        opened(lines(tmp_path / "one.jsonl", [1]), "train")


def test_a_folder_may_hold_both_parts(tmp_path):
    lines(tmp_path / "train.jsonl", range(3))
    lines(tmp_path / "validation.jsonl", [7])
    assert answers_of(opened(tmp_path, "validation")) == ["answer 7\n"]
    assert len(opened(tmp_path, "train", packed=True)) == 2  # two of 11 bytes in 24


def test_rows_have_one_shape_and_an_end(tmp_path):
    source = opened(lines(tmp_path / "chat.jsonl", range(5)), "train")
    assert {row.shape for row, _ in source} == {torch.Size([24])}
    assert source.where(1).startswith("row 1 of conversations of")
