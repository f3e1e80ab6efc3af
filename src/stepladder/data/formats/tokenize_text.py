"""Text as token ids, end to end: its bytes, or what a tokenizer of Hugging Face's makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.errors import DataError

from .optional_packages import package

BYTES = "bytes"  # the word for no tokenizer
FILE = "tokenizer.json"
AT_ONCE = 1024  # texts that are encoded together


def encode(
    texts: Sequence[bytes], tokenizer: str, vocabulary: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """All texts end to end, and where each begins; each id is one that the model knows.

    Special tokens are not added: where a text begins is told beside its tokens.
    """
    if tokenizer == BYTES:
        return _bytes(texts, vocabulary)
    encoder, name = _open(tokenizer)
    size = encoder.get_vocab_size()
    if vocabulary is not None and size > vocabulary:
        problem = f"{name} makes {size} different tokens and the model knows {vocabulary}"
        raise DataError("data.tokenizer", problem, "Use the tokenizer that came with the model.")
    found: list[np.ndarray] = []
    for first in range(0, len(texts), AT_ONCE):
        words = [text.decode(errors="replace") for text in texts[first : first + AT_ONCE]]
        encoded = encoder.encode_batch_fast(words, add_special_tokens=False)
        found += [np.array(one.ids, np.int32) for one in encoded]
    return _laid_out(found)


def _bytes(texts: Sequence[bytes], vocabulary: int | None) -> tuple[np.ndarray, np.ndarray]:
    if vocabulary is not None and vocabulary < 256:
        problem = f"text is read as bytes, of which there are 256, and the model knows {vocabulary}"
        raise DataError("data.source", problem, "Use a vocabulary of 256, or data.tokenizer.")
    starts = np.cumsum([0, *(len(text) for text in texts[:-1])])
    return np.frombuffer(b"".join(texts), np.uint8), starts.astype(np.int64)


def _laid_out(found: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    filled = [ids for ids in found if len(ids)] or [np.empty(0, np.int32)]
    starts = np.cumsum([0, *(len(ids) for ids in filled[:-1])])
    return np.concatenate(filled), starts.astype(np.int64)


def _open(text: str) -> tuple[Any, str]:
    """The tokenizer of a file, or of a folder that holds one."""
    path = Path(text).expanduser()
    path = path / FILE if path.is_dir() else path
    library = package("tokenizers", field="data.tokenizer", install="tokenizers")
    try:
        return library.Tokenizer.from_str(path.read_text()), str(path)
    except Exception as broken:  # its errors are of no kind of their own
        problem = f"{path} cannot be read ({str(broken).partition(chr(10))[0]})"
        raise DataError("data.tokenizer", problem, f"Name a {FILE} or its folder.") from broken
