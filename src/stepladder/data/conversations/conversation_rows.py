"""Conversations as rows of one length, with the targets outside answers at -100.

A row holds one conversation, or, packed, as many as fit: whole ones, the longest first, each into
the fullest row that has room. Packed rows name documents and positions as `PackedRows` does. What
is left of a row is filled, and the filling is no target. Cutting a stream of conversations into
rows was not used: an answer would lose the question that it answers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from stepladder.data.packing import IGNORED, number_documents
from stepladder.data.sample_order import Integers, SampleOrder
from stepladder.data.validation_split import ONE_IN, SEED, Split
from stepladder.errors import DataError

from .encode_conversations import ConversationEncoder
from .read_conversations import SPLIT_FILES, read_conversations

Record = TypeVar("Record")
Encoded = tuple[np.ndarray, np.ndarray]  # ids, and whether each is of an answer


class ConversationRows:
    """A source of rows of `length` tokens and their targets."""

    def __init__(
        self,
        found: Sequence[Encoded],
        length: int,
        *,
        packed: bool,
        name: str = "conversations",
        empty: Sequence[str] = (),
    ) -> None:
        """Cut and lay out conversations.

        Args:
            empty: where answers without words stand, for the notes.
        """
        cuts = [cut_to(ids, answers, length) for ids, answers in found]
        self.encoded = [(ids, answers) for ids, answers in cuts if answers[1:].any()]
        self.length, self.packed, self.name = length, packed, name
        self.num_cut = sum(len(ids) > length + 1 for ids, _ in found)
        self.num_lost, self.empty = len(found) - len(self.encoded), empty
        if not self.encoded:
            problem = f"none of {len(found)} {name} has an answer in its first {length} tokens"
            raise DataError("model.sequence", problem, "Use longer rows.")
        sizes = [len(ids) - 1 for ids, _ in self.encoded]
        self.rows = fill_rows(sizes, length) if packed else [[one] for one in range(len(sizes))]

    @property
    def notes(self) -> list[str]:
        """What a reader of the run should know of the data."""
        return [
            *note(self.num_cut, f"{self.name} are longer than {self.length} tokens and were cut"),
            *note(self.num_lost, f"{self.name} have no answer in {self.length} tokens: left out"),
            *empty_answers(self.empty, self.name),
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)  # a for loop over a sequence ends on this
        inputs, targets = self.fetch(np.array([index]))
        if isinstance(inputs, dict):
            return {name: tensor[0] for name, tensor in inputs.items()}, targets[0]
        return inputs[0], targets[0]

    def fetch(self, indices: Integers) -> tuple[Any, torch.Tensor]:
        tokens = np.zeros((len(indices), self.length), np.int64)
        targets = np.full_like(tokens, IGNORED)
        opens = []  # where documents begin, with all rows laid end to end
        for row, index in enumerate(np.asarray(indices).tolist()):
            place = 0
            for one in self.rows[index]:
                ids, answers = self.encoded[one]
                end = place + len(ids) - 1
                tokens[row, place:end] = ids[:-1]
                targets[row, place:end] = np.where(answers[1:], ids[1:], IGNORED)
                opens.append(row * self.length + place)
                place = end
            if place < self.length:
                opens.append(row * self.length + place)  # the filling is a document of its own
        found = torch.from_numpy(tokens), torch.from_numpy(targets)
        if not self.packed:
            return found
        places = number_documents(np.array(opens), tokens.shape)
        named = {name: torch.from_numpy(array) for name, array in places.items()}
        return {"tokens": found[0], **named}, found[1]

    def where(self, index: int) -> str:
        return f"row {index} of {self.name}"


def note(count: int, said: str) -> list[str]:
    return [f"{count} {said}"] if count else []


def empty_answers(where: Sequence[str], name: str) -> list[str]:
    """The note about answers of which nothing but their end is learned."""
    first = f", the first in {where[0]}" if where else ""
    return note(len(where), f"{name} have an answer without words{first}: its end alone is learned")


def cut_to(ids: np.ndarray, answers: np.ndarray, length: int) -> Encoded:
    """What fits a row: its inputs, and one more token as the last target."""
    return ids[: length + 1], answers[: length + 1]


def fill_rows(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Put items into rows of `length`, the longest first, each where least room is left over."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # what is left of a row, and its number, by rising room
    for one in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        at = bisect_left(room, (sizes[one], -1))
        left, number = room.pop(at) if at < len(room) else (length, len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append(one)
        if left > sizes[one]:
            insort(room, (left - sizes[one], number))
    return rows


def open_conversations(
    path: Path, tokenizer: str, *, length: int, vocabulary: int, split: Split, packed: bool
) -> ConversationRows:
    """The training or the validation rows of a file, or of a folder that holds both."""
    chosen = choose_split(path, split, read_conversations)
    encoder = ConversationEncoder.open(tokenizer, vocabulary)
    found = [encoder.encode(one) for one in chosen]
    return ConversationRows(
        found,
        length,
        packed=packed,
        name=f"conversations of '{path}'",
        empty=[one.where for one in chosen if one.has_empty_answer],
    )


def choose_split(path: Path, split: Split, read: Callable[[Path], list[Record]]) -> list[Record]:
    """The folder's file of that name; of a single file a tenth is for validation."""
    if path.is_dir():
        return read(path / SPLIT_FILES[split == "validation"])
    found = read(path)
    if len(found) < 2:
        problem = f"'{path}' holds one line, which cannot be trained and validated on"
        raise DataError("data.source", problem, "Add lines.")
    order = SampleOrder(len(found), SEED).indices(np.arange(len(found))).tolist()
    held_out = max(len(found) // ONE_IN, 1)
    part = order[:held_out] if split == "validation" else order[held_out:]
    return [found[index] for index in sorted(part)]
