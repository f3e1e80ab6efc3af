import sys

import numpy as np
import pytest
import torch
from PIL import Image

from stepladder.data import ReadPolicy, batches
from stepladder.data.images.image_folder import ImageFolder
from stepladder.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for label, name in enumerate(("ants", "bees")):
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = np.full((20, 30, 3), 100 * label + number, np.uint8)
            pixels[:, :5] = pixels[:, -5:] = 255  # outside the middle square
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_each_sub_folder_is_a_class_and_the_middle_square_is_kept(folder):
    source = ImageFolder(folder, 8)
    assert source.classes == ["ants", "bees"] and len(source) == 6
    picture, label = source[4]
    assert label == 1 and picture.shape == (3, 8, 8)
    assert torch.allclose(picture, torch.tensor(101 / 255))
    assert source.where(4) == str(folder / "bees" / "1.png")


def test_pictures_become_batches(folder):
    with batches(ImageFolder(folder, 8), size=6) as feed:
        batch = next(feed)
    assert batch.inputs.shape == (6, 3, 8, 8) and sorted(batch.targets.tolist()) == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    assert torch.equal(batch.targets, (batch.inputs[:, 0, 0, 0] * 255).round().long() // 100)


def test_a_damaged_picture_is_named_or_skipped(folder):
    (folder / "bees" / "1.png").write_bytes(b"not a picture")
    source, quick = ImageFolder(folder, 8), ReadPolicy(pause_seconds=0)
    with (
        batches(source, size=6, reading=quick) as feed,
        pytest.raises(DataError, match=r"sample 4 \(.*bees/1.png\): cannot be read \(Unidentified"),
    ):
        next(feed)
    with batches(source, size=6, reading=ReadPolicy(on_error="skip", pause_seconds=0)) as feed:
        batch = next(feed)
    assert batch.num_rows == 6 and batch.targets.tolist().count(1) == 3
    assert len(batch.skipped) == 1
    assert "bees/1.png" in batch.skipped[0] and "Sample 5 stands in" in batch.skipped[0]


def test_a_folder_without_pictures_and_a_size_of_nothing_are_refused(tmp_path):
    (tmp_path / "ants").mkdir()
    with pytest.raises(
        DataError, match=r"has 1 sub-folders and no pictures in them. Put each class"
    ):
        ImageFolder(tmp_path)
    with pytest.raises(DataError, match=r"images\.size: 0 is not a number of pixels"):
        ImageFolder(tmp_path, 0)


def test_without_pillow_the_way_out_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"images: needs the package 'PIL'.* pip install pillow"):
        ImageFolder(folder)
