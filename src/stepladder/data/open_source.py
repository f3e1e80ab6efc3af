"""Opening the data a recipe names: a word, a folder, a pattern or a file, by what is there.

python   digits   mnist:FOLDER   images:FOLDER   text:FOLDER   tokens/*.bin   saved/train
0.7: web/*.bin, 0.3: code/      several of token files or text, mixed by weight
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from stepladder.data.formats.find_shards import ENDINGS, holds_shards, saved_parts
from stepladder.data.formats.text_columns import column_of_text, read_texts
from stepladder.data.formats.text_corpus import TEXT, part_of, rows_of, text_corpus
from stepladder.data.formats.token_files import Windows
from stepladder.data.formats.token_shards import TokenShards
from stepladder.data.formats.tokenize_text import BYTES, encode
from stepladder.data.images.image_datasets import cifar, digits, mnist
from stepladder.data.images.image_folder import ImageFolder
from stepladder.errors import DataError, nearest
from stepladder.plan.recipe import DataChoice

from .mix import Mix
from .packing import PackedRows
from .source import Source
from .validation_split import Part, Split

CLASSICS = {"mnist": mnist, "cifar": cifar}  # they come with a test part of their own
ALONE, OF_FOLDERS = ("python", "digits"), ("text", "images", *CLASSICS)
WORDS = (*ALONE, *(f"{word}:FOLDER" for word in OF_FOLDERS))
PROSE = tuple(ending for ending in TEXT if ending not in (".json", ".md"))  # those tell of a set
WEIGHED = re.compile(r"\s*(?P<weight>[0-9]*\.?[0-9]+)\s*:\s*(?P<source>\S.*?)\s*", re.ASCII)


def open_source(
    choice: DataChoice, *, length: int, vocabulary: int, split: Split, tokenizer: str = ""
) -> Source:
    """The training or the validation part of the source named.

    Args:
        tokenizer: for text, where the choice names none.
    """
    weights, names = _weighed(choice.source)
    word = choice.tokenizer or tokenizer
    sources = [_one(choice, name, length, vocabulary, split, word) for name in names]
    if choice.tokenizer and not any(isinstance(one, Windows | PackedRows) for one in sources):
        raise DataError(
            "data.tokenizer",
            f"'{choice.tokenizer}' says nothing of '{choice.source}', which is not text",
            "Leave it out.",
        )
    return Mix(sources, weights) if weights else sources[0]


def _weighed(text: str) -> tuple[list[float], list[str]]:
    """The weights and names of several sources; of one that is alone, no weight."""
    parts = [WEIGHED.fullmatch(part) for part in text.split(",")]
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
    known = word in (*ALONE, *OF_FOLDERS)
    if known:
        _check_folder(word, rest)
    if not known and (parts := saved_parts(path)):
        part = str(parts[split == "validation"])
        return _files(choice, part, length, vocabulary, None, tokenizer)
    if not known and (path.suffix in ENDINGS or glob.has_magic(name) or _of_tokens(path)):
        return _files(choice, name, length, vocabulary, split, tokenizer)
    _refuse_words_of_tokens(choice, name)
    if word == "digits":
        return Part(digits(), split)
    if word in CLASSICS:
        return CLASSICS[word](rest, split=split)
    if word == "images":
        return Part(ImageFolder(rest), split)
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


def _check_folder(word: str, folder: str) -> None:
    """Refuse a word that needs a folder and has none, which would be the working folder."""
    if word in OF_FOLDERS and not folder.strip():
        named = f", or './{word}' for the folder of that name" if Path(word).is_dir() else ""
        problem, remedy = f"'{word}' names no folder", f"Write '{word}:FOLDER'{named}."
        raise DataError("data.source", problem, remedy)
    if word in ALONE and folder:
        raise DataError("data.source", f"'{word}' has no folder to name", f"Write '{word}' alone.")


def _files(
    choice: DataChoice,
    name: str,
    length: int,
    vocabulary: int,
    split: Split | None,
    tokenizer: str,
) -> Source:
    """The ids of token files, or the text of a column: a part of it, or None, all of it."""
    column = column_of_text(name, choice.column)
    if not column:
        shards = _shards(choice, name, length, vocabulary)
        return Part(shards, split) if split else shards
    _refuse_words_of_tokens(choice, name, ("dtype", "document_end"))
    tokens, starts = encode(read_texts(name, column), tokenizer or BYTES, vocabulary)
    part = part_of(len(tokens), split) if split else (0, len(tokens))
    where = f"column '{column}' of '{name}'"
    return rows_of(tokens, starts, part, length, packed=choice.packed, name=where)


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


def _refuse_words_of_tokens(
    choice: DataChoice, name: str, keys: tuple[str, ...] = ("dtype", "column", "document_end")
) -> None:
    for key in keys:
        if (given := getattr(choice, key)) != getattr(DataChoice(), key):
            raise DataError(
                f"data.{key}",
                f"'{given}' says nothing of '{name}', which is not made of token files",
                "Leave it out.",
            )


def _of_tokens(folder: Path) -> bool:
    """Whether a folder holds token shards; one that also holds text could mean either."""
    if not folder.is_dir() or not holds_shards(folder):
        return False
    text = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PROSE)
    if text:
        raise DataError(
            "data.source",
            f"'{folder}' holds token files and text, such as '{text[0]}'",
            f"Write a pattern for the tokens, '{folder}/*.bin', or 'text:{folder}'.",
        )
    return True
