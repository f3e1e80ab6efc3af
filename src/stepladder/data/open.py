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
CLASSICS = {"mnist": mnist, "cifar": cifar}  # they come with a test part of their own
WORDS = ("python", "digits", "images:FOLDER", *(f"{word}:FOLDER" for word in CLASSICS))


def open_source(choice: DataChoice, *, length: int, vocabulary: int, split: Split) -> Source:
    """The training or the validation part of the source named."""
    word, _, rest = choice.source.partition(":")
    path = Path(choice.source)
    if word == "python":
        return text_corpus(None, length=length, split=split, packed=choice.packed)
    if word == "digits":
        return Part(digits(), split)
    if word in CLASSICS:
        return CLASSICS[word](rest, split=split)
    if word == "images":
        return Part(ImageFolder(rest), split)
    if path.suffix in TOKENS:
        limit = choice.vocabulary or vocabulary
        return Part(TokenFile(path, length=length, vocabulary=limit), split)
    if path.is_dir() or "/" in choice.source:
        return text_corpus(path, length=length, split=split, packed=choice.packed)
    raise DataError(
        "data.source", f"'{choice.source}' is neither a source nor a path", nearest(word, WORDS)
    )
