"""Conversations and instructions in JSON lines: one object a line.

{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
{"prompt": "...", "response": "..."}   or instruction (with input) and output, or completion
{"prompt": "...", "chosen": "...", "rejected": "..."}   each a text, or a list of messages

Lists under `conversations` with `from` and `value` (ShareGPT's) are read as messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stepladder.data.formats.data_files import existing_path, read_bytes
from stepladder.errors import DataError

FIELD = "data.source"
SUFFIX = ".jsonl"
SPLIT_FILES = ("train.jsonl", "validation.jsonl")  # of a folder with both
ROLES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant"}
KNOWN_ROLES = ("system", "user", "assistant", "tool", "developer", "function")
PROMPTS, ANSWERS = ("prompt", "instruction"), ("response", "output", "completion")
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # escaped or as bytes
HALF = re.compile("[\ud800-\udfff]")  # one that json did not join with another
EXAMPLE = 'Write {"messages": [...]} or {"prompt": "...", "response": "..."} on each line.'


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says."""

    role: str
    content: str

    @property
    def is_answer(self) -> bool:
        return self.role == "assistant"


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, of which the assistant's are learned."""

    turns: tuple[Turn, ...]
    where: str  # the file and line
    instruction: bool = False  # a prompt and its answer, which were given without roles
    known_answers: int = 0  # the first ones, which are not learned

    @property
    def has_empty_answer(self) -> bool:
        learned = [turn for turn in self.turns if turn.is_answer][self.known_answers :]
        return not all(turn.content.strip() for turn in learned)


def is_conversation_path(path: Path) -> bool:
    """Whether a path names JSON lines, or a folder with a training and a validation file."""
    return path.suffix == SUFFIX or all((path / name).is_file() for name in SPLIT_FILES)


def read_records(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every line's object, with the file and line for messages."""
    for number, line in enumerate(read_bytes(existing_path(path, FIELD), FIELD).splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number} of '{path}'"
        try:
            record = json.loads(line)
        except ValueError as broken:
            raise DataError(FIELD, f"{where} is not JSON ({broken})", EXAMPLE) from broken
        if not isinstance(record, dict):
            raise DataError(FIELD, f"{where} is no JSON object", EXAMPLE)
        if SURROGATE.search(line) and HALF.search(json.dumps(record, ensure_ascii=False)):
            problem = f"{where} has half of a surrogate pair, which is no letter of any text"
            raise DataError(FIELD, problem, "Write the letter itself, or both halves.")
        yield record, where


def read_conversations(path: Path) -> list[Conversation]:
    """All conversations of a file; each has an answer to learn."""
    found = [conversation_of(record, where) for record, where in read_records(path)]
    if not found:
        raise DataError(FIELD, f"'{path}' has no line to learn from", EXAMPLE)
    return found


def holds_preferences(path: Path) -> bool:
    """Whether a file's first line has two answers to choose from."""
    file = path / SPLIT_FILES[0] if path.is_dir() else path
    return any(
        {"chosen", "rejected"} <= record.keys() for record, _ in islice(read_records(file), 1)
    )


def read_preferences(path: Path) -> list[tuple[Conversation, Conversation]]:
    """Pairs of conversations with one beginning: the end that was chosen, and the other."""
    return [preference_of(record, where) for record, where in read_records(path)]


def preference_of(record: Mapping[str, Any], where: str) -> tuple[Conversation, Conversation]:
    sides = [record.get(key) for key in ("chosen", "rejected")]
    prompt = record.get("prompt", [])
    plain = all(isinstance(one, str) for one in (prompt, *sides))
    before = side_turns(prompt, "user", where)
    ends = [side_turns(side or [], "assistant", where) for side in sides]
    if "prompt" not in record:  # then both lists begin with it
        shared = next((n for n, (a, b) in enumerate(zip(*ends)) if a != b), min(map(len, ends)))
        before, ends = ends[0][:shared], [end[shared:] for end in ends]
    told = [[turn for turn in end if turn.is_answer] for end in ends]
    if not before or not all(told) or ends[0] == ends[1]:
        wrong = [
            *(f"'{key}' is empty" for key, end in zip(("chosen", "rejected"), told) if not end),
            *(["no prompt"] if not before else []),
        ]
        why = f" ({', '.join(wrong)})" if wrong else ""
        problem = f"{where} has no prompt with two different answers{why}"
        remedy = 'Write {"prompt": "...", "chosen": "...", "rejected": "..."} on each line.'
        raise DataError(FIELD, problem, remedy)
    known = sum(turn.is_answer for turn in before)
    chosen, rejected = [Conversation((*before, *end), where, plain, known) for end in ends]
    return chosen, rejected


def side_turns(given: Any, role: str, where: str) -> tuple[Turn, ...]:
    """A text of one side, or a list of messages."""
    return (Turn(role, given),) if isinstance(given, str) else read_turns(given, where)


def conversation_of(record: Mapping[str, Any], where: str) -> Conversation:
    turns = record.get("messages", record.get("conversations"))
    if turns is not None:
        read = read_turns(turns, where)
        if not any(turn.is_answer for turn in read):
            problem = f"{where} has no message of the assistant to learn"
            raise DataError(FIELD, problem, "Give one the role 'assistant', or leave the line out.")
        return Conversation(read, where)
    prompt = next((record[key] for key in PROMPTS if key in record), None)
    answer = next((record[key] for key in ANSWERS if key in record), None)
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise DataError(FIELD, f"{where} {why_no_conversation(record)}", EXAMPLE)
    extra = record.get("input") or ""
    if not isinstance(extra, str):
        problem = f"{where} has an input that is no text"
        raise DataError(FIELD, problem, "Write the input in quotes, or leave it out.")
    prompt = f"{prompt}\n\n{extra}" if extra else prompt
    return Conversation((Turn("user", prompt), Turn("assistant", answer)), where, instruction=True)


def why_no_conversation(record: Mapping[str, Any]) -> str:
    """What a line has in place of a prompt and an answer."""
    keys = ", ".join(map(repr, record)) or "none"
    if (pair := {"chosen", "rejected"} & record.keys()) and len(pair) == 1:
        (other,) = {"chosen", "rejected"} - pair
        return f"has '{pair.pop()}' and no '{other}': a preference has both"
    if pair:
        return "is a preference, and the first line of the file is a conversation"
    no_texts = [
        f"has a '{key}' that is no text but {type(record[key]).__name__}"
        for key in (*PROMPTS, *ANSWERS)
        if key in record and not isinstance(record[key], str)
    ]
    if no_texts:
        return " and ".join(no_texts)
    return f"has the keys {keys}, and no prompt and answer"


def read_turns(messages: Any, where: str) -> tuple[Turn, ...]:
    """The turns of a list of messages."""
    if not isinstance(messages, list):
        raise DataError(FIELD, f"{where} has messages that are no list", EXAMPLE)
    return tuple(read_turn(message, where) for message in messages)


def read_turn(message: Any, where: str) -> Turn:
    held = message if isinstance(message, dict) else {}
    role, content = held.get("role", held.get("from")), held.get("content", held.get("value"))
    if not isinstance(role, str) or not isinstance(content, str):
        problem = f"{where} has a message without a role and a text"
        raise DataError(FIELD, problem, 'Write {"role": "user", "content": "..."}.')
    known = ROLES.get(role.lower(), role.lower())
    return Turn(known if known in KNOWN_ROLES else role, content)
