"""Opening the data a recipe names: a word, a folder or a file, told apart by what is there."""

from __future__ import annotations

from pathlib import Path

from stepladder.errors import DataError, nearest
from stepladder.plan import DataChoice

from .classics import cifar, digits, mnist
from .corpus import text_corpus
from .held import Part, Split
from .images import ImageFolder
from .source import Source
from .tokens import TokenFile

TOKENS = (".bin", ".npy")
FOLDERS = {"mnist": mnist, "cifar": cifar, "images": ImageFolder}
WORDS = ("python", "digits", *(f"{word}:FOLDER" for word in FOLDERS))


def open_source(choice: DataChoice, *, length: int, vocabulary: int, split: Split) -> Source:
    """The training or the validation part of the source named."""
    word, _, rest = choice.source.partition(":")
    path = Path(choice.source)
    if word == "python":
        return text_corpus(None, length=length, split=split, packed=choice.packed)
    if word == "digits":
        return Part(digits(), split)
    if word in FOLDERS:
        return Part(FOLDERS[word](rest), split)  # type: ignore[operator]
    if path.suffix in TOKENS:
        limit = choice.vocabulary or vocabulary
        return Part(TokenFile(path, length=length, vocabulary=limit), split)
    if path.is_dir() or "/" in choice.source:
        return text_corpus(path, length=length, split=split, packed=choice.packed)
    raise DataError(
        "data.source", f"'{choice.source}' is neither a source nor a path", nearest(word, WORDS)
    )
