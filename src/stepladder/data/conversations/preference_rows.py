"""Pairs of answers as rows: the chosen one and the rejected one, after the same prompt.

A sample's inputs are the tokens and the labels of both, each of (2, length); labels are the tokens
that follow, -100 outside the answers. Its target is what the reference model gives both answers:
the logarithm of their probability, computed once and set before the first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stepladder.data.packing import IGNORED
from stepladder.data.sample_order import Integers
from stepladder.data.validation_split import Split
from stepladder.errors import DataError

from .conversation_rows import choose_split, empty_answers, note
from .encode_conversations import ConversationEncoder
from .read_conversations import read_preferences

Pair = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
Sample = tuple[tuple[Tensor, Tensor], Tensor]


class PreferenceRows:
    """A source of pairs of answers."""

    def __init__(
        self,
        found: list[Pair],
        length: int,
        *,
        name: str = "preferences",
        empty: Sequence[str] = (),
    ) -> None:
        """Cut and lay out pairs.

        Args:
            empty: where answers without words stand, for the notes.
        """
        cut = [[(ids[: length + 1], own[: length + 1]) for ids, own in pair] for pair in found]
        kept = [pair for pair in cut if all(own[1:].any() for _, own in pair)]
        if not kept:
            problem = f"none of {len(found)} {name} has two answers in its first {length} tokens"
            raise DataError("model.sequence", problem, "Use longer rows.")
        self.num_lost, self.length, self.name = len(found) - len(kept), length, name
        self.num_cut = sum(any(len(ids) > length + 1 for ids, _ in pair) for pair in found)
        self.empty = empty
        self.tokens = np.zeros((len(kept), 2, length), np.int32)
        self.labels = np.full_like(self.tokens, IGNORED)
        for row, pair in enumerate(kept):
            for side, (ids, own) in enumerate(pair):
                size = len(ids) - 1
                self.tokens[row, side, :size] = ids[:-1]
                self.labels[row, side, :size] = np.where(own[1:], ids[1:], IGNORED)
        self.reference = torch.zeros(len(kept), 2)

    @property
    def notes(self) -> list[str]:
        """What a reader of the run should know of the data."""
        return [
            *note(self.num_cut, f"{self.name} are longer than {self.length} tokens and were cut"),
            *note(
                self.num_lost, f"{self.name} have no two answers in {self.length} tokens: left out"
            ),
            *empty_answers(self.empty, self.name),
        ]

    @property
    def key(self) -> str:
        """What the rows hold, as a hash."""
        return hashlib.sha256(self.tokens.tobytes() + self.labels.tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)  # a for loop over a sequence ends on this
        (tokens, labels), reference = self.fetch(np.array([index]))
        return (tokens[0], labels[0]), reference[0]

    def fetch(self, indices: Integers) -> Sample:
        tokens = torch.from_numpy(self.tokens[indices].astype(np.int64))
        labels = torch.from_numpy(self.labels[indices].astype(np.int64))
        return (tokens, labels), self.reference[torch.from_numpy(np.asarray(indices))]

    def where(self, index: int) -> str:
        return f"pair {index} of {self.name}"


def open_preferences(
    path: Path, tokenizer: str, *, length: int, vocabulary: int, split: Split
) -> PreferenceRows:
    """The training or the validation pairs of a file, or of a folder that holds both."""
    encoder = ConversationEncoder.open(tokenizer, vocabulary)
    pairs = choose_split(path, split, read_preferences)
    found = [(encoder.encode(chosen), encoder.encode(rejected)) for chosen, rejected in pairs]
    empty = [one.where for one, other in pairs if one.has_empty_answer or other.has_empty_answer]
    return PreferenceRows(found, length, name=f"preferences of '{path}'", empty=empty)
