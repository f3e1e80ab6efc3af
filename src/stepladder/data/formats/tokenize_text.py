"""Encoding text as token ids: its bytes, or the output of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.errors import DataError

from .optional_packages import import_optional

BYTES = "bytes"  # no tokenizer: each byte is a token
FILE = "tokenizer.json"
TEXTS_PER_CALL = 1024  # texts that are encoded together


def encode_texts(
    texts: Sequence[bytes], tokenizer: str, vocabulary: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all texts, concatenated, and where each text begins; checks the vocabulary.

    Special tokens are not added: text boundaries are returned beside the tokens.
    """
    if tokenizer == BYTES:
        return _bytes(texts, vocabulary)
    encoder = open_tokenizer(tokenizer, vocabulary)
    found: list[np.ndarray] = []
    for first in range(0, len(texts), TEXTS_PER_CALL):
        words = [text.decode(errors="replace") for text in texts[first : first + TEXTS_PER_CALL]]
        encoded = encoder.encode_batch_fast(words, add_special_tokens=False)
        found += [np.array(one.ids, np.int32) for one in encoded]
    return _concatenate(found)


def _bytes(texts: Sequence[bytes], vocabulary: int | None) -> tuple[np.ndarray, np.ndarray]:
    if vocabulary is not None and vocabulary < 256:
        problem = f"text is read as bytes, of which there are 256, and the model knows {vocabulary}"
        raise DataError("data.source", problem, "Use a vocabulary of 256, or data.tokenizer.")
    starts = np.cumsum([0, *(len(text) for text in texts[:-1])])
    return np.frombuffer(b"".join(texts), np.uint8), starts.astype(np.int64)


def _concatenate(found: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    filled = [ids for ids in found if len(ids)] or [np.empty(0, np.int32)]
    starts = np.cumsum([0, *(len(ids) for ids in filled[:-1])])
    return np.concatenate(filled), starts.astype(np.int64)


def open_tokenizer(text: str, vocabulary: int | None) -> Any:
    """The tokenizer of a file, or of a folder that holds one; checks the vocabulary."""
    encoder, name = _open(text)
    size = encoder.get_vocab_size()
    if vocabulary is not None and size > vocabulary:
        problem = f"{name} makes {size} different tokens and the model knows {vocabulary}"
        raise DataError("data.tokenizer", problem, "Use the tokenizer that came with the model.")
    return encoder


def _open(text: str) -> tuple[Any, str]:
    """The tokenizer of a file, or of a folder that holds one, and its path."""
    path = Path(text).expanduser()
    path = path / FILE if path.is_dir() else path
    library = import_optional("tokenizers", field="data.tokenizer", install="tokenizers")
    try:
        encoder = library.Tokenizer.from_str(path.read_text())
    except Exception as broken:  # tokenizers raises plain Exception
        problem = f"{path} cannot be read ({str(broken).partition(chr(10))[0]})"
        raise DataError("data.tokenizer", problem, f"Name a {FILE} or its folder.") from broken
    # A file may say how its own examples were cut and filled up; a text here is taken whole.
    encoder.no_truncation()
    encoder.no_padding()
    return encoder, str(path)
