"""Images: pixels in memory as bytes, or a folder with one sub-folder per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from stepladder.data.formats.data_files import existing_folder, files_below
from stepladder.data.formats.optional_packages import import_optional
from stepladder.data.sample_order import Integers
from stepladder.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")


class Pixels:
    """Images of one size stored as bytes (count, channels, height, width), read as 0 to 1."""

    parallel = True

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        self.pixels = torch.from_numpy(pixels.copy())  # the file's buffer is read-only
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pixels[index].float() / 255, self.labels[index]

    def fetch(self, indices: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.from_numpy(np.ascontiguousarray(indices))
        return self.pixels[rows].float() / 255, self.labels[rows]


class ImageFolder:
    """Images below `path`, a sub-folder per class, each cropped to its centre square of `size`."""

    parallel = True  # decoding releases the GIL

    def __init__(self, path: str | os.PathLike[str], size: int = 224) -> None:
        if size < 1:
            raise DataError("images.size", f"{size} is not a number of pixels", "Use at least 1.")
        import_optional("PIL", field="images", install="pillow")
        self.folder, self.size = existing_folder(path, "images"), size
        self.classes = sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir())
        found = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in files_below(self.folder / name, IMAGE_SUFFIXES, frozenset())
        ]
        if not found:
            raise DataError(
                "images",
                f"'{path}' has {len(self.classes)} sub-folders and no pictures in them",
                f"Put each class's pictures ({', '.join(IMAGE_SUFFIXES[:3])}) into its own "
                "sub-folder.",
            )
        self.files, self.labels = zip(*found)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return _decode(self.files[index], self.size), self.labels[index]

    def where(self, index: int) -> str:
        return str(self.files[index])


def _decode(path: Path, size: int) -> torch.Tensor:
    """The image's centre square, as (3, size, size) in 0 to 1."""
    pillow = import_optional("PIL.Image", field="images", install="pillow")
    with pillow.open(path) as opened:
        picture = opened.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side)).resize((size, size))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255
