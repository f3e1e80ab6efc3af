"""MNIST, CIFAR and scikit-learn's digits, read from local files.

Nothing is downloaded and nothing is unpickled: a pickle can run code when it is loaded, so CIFAR is
read from its binary version only.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from stepladder.data.formats.data_files import existing_folder, read_bytes, unreadable_data
from stepladder.data.formats.optional_packages import import_optional
from stepladder.data.source import Arrays
from stepladder.errors import DataError, nearest

from .image_folder import Pixels

Split = Literal["train", "validation"]
CIFAR_FILES = {
    (10, "train"): tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    (10, "validation"): ("test_batch.bin",),
    (100, "train"): ("train.bin",),
    (100, "validation"): ("test.bin",),
}
CIFAR_PICKLES = {"data_batch_1", "test_batch", "cifar-10-batches-py", "cifar-100-python"}


def mnist(folder: str | os.PathLike[str], *, split: Split = "train") -> Pixels:
    """MNIST, or anything in its IDX format, from the folder its files lie in, compressed or not."""
    prefix = _choose(split, {"train": "train", "validation": "t10k"})
    root = existing_folder(folder, "mnist")
    pixels = _read_idx(root, f"{prefix}-images-idx3-ubyte", num_dims=3)
    labels = _read_idx(root, f"{prefix}-labels-idx1-ubyte", num_dims=1)
    if len(pixels) != len(labels):
        raise DataError(
            "mnist",
            f"{len(pixels)} pictures and {len(labels)} labels in '{root}'",
            "Fetch both again.",
        )
    return Pixels(pixels[:, None], labels)


def cifar(
    folder: str | os.PathLike[str], *, split: Split = "train", classes: Literal[10, 100] = 10
) -> Pixels:
    """CIFAR-10 or CIFAR-100 from the files of the binary version."""
    if classes not in (10, 100):
        raise DataError("cifar.classes", f"there is no CIFAR-{classes}", "Use 10 or 100.")
    names = CIFAR_FILES[classes, _choose(split, {"train": "train", "validation": "validation"})]
    root = _cifar_root(existing_folder(folder, "cifar"), names, classes)
    label_bytes = 1 if classes == 10 else 2  # CIFAR-100 states the coarse class, then the fine one
    records = np.concatenate([_read_records(root / name, label_bytes + 3072) for name in names])
    return Pixels(records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1])


def digits() -> Arrays:
    """Scikit-learn's 1,797 handwritten digits: pictures (1, 8, 8) in 0 to 1, and labels."""
    datasets = import_optional("sklearn.datasets", field="digits", install="scikit-learn")
    loaded = datasets.load_digits()
    return Arrays((loaded.images[:, None] / 16).astype(np.float32), loaded.target.astype(np.int64))


def _choose(split: str, names: dict[str, str]) -> str:
    if split not in names:
        raise DataError("split", f"'{split}' is not a part of this set", nearest(split, names))
    return names[split]


def _read_idx(root: Path, name: str, *, num_dims: int) -> np.ndarray:
    """Bytes in IDX format: two zeros, the type (8: byte), the number of sizes, the sizes."""
    path = next((root / entry for entry in (name, f"{name}.gz") if (root / entry).exists()), None)
    if path is None:
        raise DataError(
            "mnist",
            f"'{root}' does not hold '{name}' or '{name}.gz'",
            "Put the four original files there.",
        )
    raw = _plain(path)
    header = 4 + 4 * num_dims
    if raw[:4] != bytes([0, 0, 8, num_dims]) or len(raw) < header:
        raise DataError(
            "mnist", f"'{path}' does not begin as IDX bytes of {num_dims} sizes", "Fetch it again."
        )
    shape = np.frombuffer(raw, ">u4", num_dims, 4).astype(int)
    if len(raw) - header != shape.prod():
        raise DataError(
            "mnist",
            f"'{path}' promises {shape.prod()} bytes and holds {len(raw) - header}",
            "It was cut short: fetch it again.",
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _plain(path: Path) -> bytes:
    raw = read_bytes(path, "mnist")
    try:
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable_data(path, "mnist", error) from error


def _cifar_root(folder: Path, names: tuple[str, ...], classes: int) -> Path:
    """The folder itself, or the one the archive unpacks to inside it."""
    archive = "cifar-10-batches-bin" if classes == 10 else "cifar-100-binary"
    for root in (folder, folder / archive):
        if all((root / name).exists() for name in names):
            return root
    there = {entry.name for entry in folder.iterdir()}
    pickled = (
        "; what is there is the pickled version, which can run code when read"
        if there & CIFAR_PICKLES
        else ""
    )
    raise DataError(
        "cifar",
        f"'{folder}' does not hold {', '.join(names)}{pickled}",
        f"Unpack the binary version there: cifar-{classes}-binary.tar.gz.",
    )


def _read_records(path: Path, record_bytes: int) -> np.ndarray:
    raw = read_bytes(path, "cifar")
    if not raw or len(raw) % record_bytes:
        raise DataError(
            "cifar",
            f"'{path}' has {len(raw)} bytes, not a whole number of records of {record_bytes}",
            "It was cut short: fetch it again.",
        )
    return np.frombuffer(raw, np.uint8).reshape(-1, record_bytes)
