"""Opening the data that a recipe names: a word, a folder, a glob pattern or a file.

python   digits   mnist:FOLDER   images:FOLDER   text:FOLDER   tokens/*.bin   saved/train
chat.jsonl                      conversations or instructions, of which answers are learned
0.7: web/*.bin, 0.3: code/      a mixture of token files or text, by weight
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from stepladder.data.conversations.conversation_rows import ConversationRows, open_conversations
from stepladder.data.conversations.preference_rows import PreferenceRows, open_preferences
from stepladder.data.conversations.read_conversations import (
    holds_preferences,
    is_conversation_path,
)
from stepladder.data.formats.find_shards import SHARD_SUFFIXES, holds_shards, saved_splits
from stepladder.data.formats.text_columns import find_text_column, read_texts
from stepladder.data.formats.text_corpus import TEXT_SUFFIXES, make_rows, split_range, text_corpus
from stepladder.data.formats.token_files import TokenWindows
from stepladder.data.formats.token_shards import TokenShards
from stepladder.data.formats.tokenize_text import BYTES, encode_texts
from stepladder.data.images.image_datasets import cifar, digits, mnist
from stepladder.data.images.image_folder import ImageFolder
from stepladder.errors import DataError, nearest
from stepladder.plan.recipe import DataChoice

from .mixture import Mixture
from .packing import PackedRows
from .source import Source
from .validation_split import Split, SplitSource

CLASSICS = {"mnist": mnist, "cifar": cifar}  # these have their own test split
STANDALONE_WORDS, FOLDER_WORDS = ("python", "digits"), ("text", "images", *CLASSICS)
WORDS = (*STANDALONE_WORDS, *(f"{word}:FOLDER" for word in FOLDER_WORDS))
PROSE_SUFFIXES = tuple(
    ending for ending in TEXT_SUFFIXES if ending not in (".json", ".md")
)  # which may describe a set of token files
TOKENIZED = (
    TokenWindows,
    PackedRows,
    ConversationRows,
    PreferenceRows,
)  # what a tokenizer makes of text
WEIGHTED = re.compile(r"\s*(?P<weight>[0-9]*\.?[0-9]+)\s*:\s*(?P<source>\S.*?)\s*", re.ASCII)


def open_source(
    choice: DataChoice, *, length: int, vocabulary: int, split: Split, tokenizer: str = ""
) -> Source:
    """Open the training or the validation split of the data that a recipe names.

    Args:
        tokenizer: for text, if the choice names none.
    """
    weights, names = _parse_weights(choice.source)
    word = choice.tokenizer or tokenizer
    sources = [_one(choice, name, length, vocabulary, split, word) for name in names]
    if choice.tokenizer and not any(isinstance(one, TOKENIZED) for one in sources):
        raise DataError(
            "data.tokenizer",
            f"'{choice.tokenizer}' says nothing of '{choice.source}', which is not text",
            "Leave it out.",
        )
    return Mixture(sources, weights) if weights else sources[0]


def _parse_weights(text: str) -> tuple[list[float], list[str]]:
    """The weights and names of several sources; a single source has no weight."""
    parts = [WEIGHTED.fullmatch(part) for part in text.split(",")]
    if not any(parts):
        return [], [text]
    for part, word in zip(parts, text.split(",")):
        if part is None:
            raise DataError(
                "data.source",
                f"'{word.strip()}' has no weight and others have",
                "Write each as WEIGHT: SOURCE, such as '0.7: web/*.bin, 0.3: code/'.",
            )
    found = [part for part in parts if part is not None]
    return [float(part["weight"]) for part in found], [part["source"] for part in found]


def _one(
    choice: DataChoice, name: str, length: int, vocabulary: int, split: Split, tokenizer: str
) -> Source:
    word, _, rest = name.partition(":")
    path = Path(name).expanduser()
    known = word in (*STANDALONE_WORDS, *FOLDER_WORDS)
    if known:
        _check_folder(word, rest)
    if not known and (parts := saved_splits(path)):
        part = str(parts[split == "validation"])
        return _files(choice, part, length, vocabulary, None, tokenizer)
    if not known and (path.suffix in SHARD_SUFFIXES or glob.has_magic(name) or _holds_tokens(path)):
        return _files(choice, name, length, vocabulary, split, tokenizer)
    refuse_token_options(choice, name)
    if not known and is_conversation_path(path):
        return _conversations(choice, path, length, vocabulary, split, tokenizer or BYTES)
    if word == "digits":
        return SplitSource(digits(), split)
    if word in CLASSICS:
        return CLASSICS[word](rest, split=split)
    if word == "images":
        return SplitSource(ImageFolder(rest), split)
    if known or path.is_dir() or "/" in name:
        folder = None if word == "python" else rest if known else path
        return text_corpus(
            folder,
            length=length,
            split=split,
            packed=choice.packed,
            tokenizer=tokenizer or BYTES,
            vocabulary=vocabulary,
        )
    raise DataError("data.source", f"'{name}' is neither a source nor a path", nearest(word, WORDS))


def _conversations(
    choice: DataChoice, path: Path, length: int, vocabulary: int, split: Split, tokenizer: str
) -> ConversationRows | PreferenceRows:
    """Conversations to learn, or pairs of answers to prefer one of."""
    sizes = {"length": length, "vocabulary": vocabulary}
    if not holds_preferences(path):
        return open_conversations(path, tokenizer, **sizes, split=split, packed=choice.packed)
    if choice.packed:
        problem = f"'{path}' holds pairs of answers, and packed rows would hold parts of several"
        raise DataError("data.packed", problem, "Leave it out.")
    return open_preferences(path, tokenizer, **sizes, split=split)


def _check_folder(word: str, folder: str) -> None:
    """Refuse a word that needs a folder and has none, or has one and needs none."""
    if word in FOLDER_WORDS and not folder.strip():
        named = f", or './{word}' for the folder of that name" if Path(word).is_dir() else ""
        problem, remedy = f"'{word}' names no folder", f"Write '{word}:FOLDER'{named}."
        raise DataError("data.source", problem, remedy)
    if word in STANDALONE_WORDS and folder:
        raise DataError("data.source", f"'{word}' has no folder to name", f"Write '{word}' alone.")


def _files(
    choice: DataChoice,
    name: str,
    length: int,
    vocabulary: int,
    split: Split | None,
    tokenizer: str,
) -> Source:
    """Token files, or a text column of a table; all of it if `split` is None."""
    column = find_text_column(name, choice.column)
    if not column:
        shards = _shards(choice, name, length, vocabulary)
        return SplitSource(shards, split) if split else shards
    refuse_token_options(choice, name, ("dtype", "document_end"))
    tokens, starts = encode_texts(read_texts(name, column), tokenizer or BYTES, vocabulary)
    part = split_range(len(tokens), split) if split else (0, len(tokens))
    where = f"column '{column}' of '{name}'"
    return make_rows(tokens, starts, part, length, packed=choice.packed, name=where)


def _shards(choice: DataChoice, name: str, length: int, vocabulary: int) -> TokenShards:
    return TokenShards(
        name,
        length,
        dtype=choice.dtype or None,
        column=choice.column or None,
        packed=choice.packed,
        document_end=choice.document_end if choice.document_end >= 0 else None,
        vocabulary=choice.vocabulary or vocabulary,
    )


def refuse_token_options(
    choice: DataChoice, name: str, keys: tuple[str, ...] = ("dtype", "column", "document_end")
) -> None:
    """Refuse settings of token files for what is not made of them."""
    for key in keys:
        if (given := getattr(choice, key)) != getattr(DataChoice(), key):
            raise DataError(
                f"data.{key}",
                f"'{given}' says nothing of '{name}', which is not made of token files",
                "Leave it out.",
            )


def _holds_tokens(folder: Path) -> bool:
    """Whether a folder holds token shards; raises if it holds text as well."""
    if not folder.is_dir() or not holds_shards(folder):
        return False
    text = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PROSE_SUFFIXES)
    if text:
        raise DataError(
            "data.source",
            f"'{folder}' holds token files and text, such as '{text[0]}'",
            f"Write a pattern for the tokens, '{folder}/*.bin', or 'text:{folder}'.",
        )
    return True
