import gzip
import pickle
import struct
import sys

import numpy as np
import pytest
import torch

from stepladder.data import batches
from stepladder.data.images.image_datasets import cifar, digits, mnist
from stepladder.errors import DataError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def pixels(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_read_from_its_four_files_packed_or_not(tmp_path, packed):
    for name, array in ((IMAGES, pixels(5, 28, 28)), (LABELS, np.arange(5, dtype=np.uint8))):
        raw = idx(array)
        (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(raw) if packed else raw)
    source = mnist(tmp_path)
    picture, label = source[3]
    assert len(source) == 5 and label == 3 and picture.shape == (1, 28, 28)
    assert torch.allclose(picture * 255, torch.from_numpy(pixels(5, 28, 28)[3]).float())
    assert torch.equal(source.fetch(np.array([3]))[0][0], picture)


def test_mnist_that_is_missing_damaged_or_odd_is_refused(tmp_path):
    with pytest.raises(
        DataError, match=rf"does not hold '{IMAGES}' or '{IMAGES}.gz'. Put the four"
    ):
        mnist(tmp_path)
    with pytest.raises(DataError, match=r"does not hold 't10k-images-idx3-ubyte'"):
        mnist(tmp_path, split="validation")
    with pytest.raises(DataError, match=r"split: 'test' is not a part of this set"):
        mnist(tmp_path, split="test")
    (tmp_path / IMAGES).write_bytes(idx(pixels(5, 28, 28))[:-1])
    with pytest.raises(DataError, match=r"promises 3920 bytes and holds 3919. It was cut short"):
        mnist(tmp_path)
    (tmp_path / IMAGES).write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"does not begin as IDX bytes of 3 sizes. Fetch it again"):
        mnist(tmp_path)
    (tmp_path / IMAGES).write_bytes(idx(pixels(5, 28, 28)))
    (tmp_path / LABELS).write_bytes(idx(np.zeros(4, np.uint8)))
    with pytest.raises(DataError, match=r"5 pictures and 4 labels in .* Fetch both again"):
        mnist(tmp_path)


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(idx(pixels(5, 28, 28)))[:50])
    with pytest.raises(DataError, match=r"mnist: .*idx3-ubyte.gz' cannot be read"):
        mnist(tmp_path)


def test_cifar_is_read_from_the_binary_version(tmp_path):
    root = tmp_path / "cifar-10-batches-bin"
    root.mkdir()
    for number in range(1, 6):
        record = np.concatenate([np.full((2, 1), number, np.uint8), pixels(2, 3072)], axis=1)
        (root / f"data_batch_{number}.bin").write_bytes(record.tobytes())
    source = cifar(tmp_path)
    assert len(source) == 10 and source.labels.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert torch.allclose(
        source[1][0].flatten() * 255, torch.from_numpy(pixels(2, 3072)[1]).float()
    )


def test_cifar_100_takes_the_fine_label(tmp_path):
    record = np.concatenate([np.array([[3, 77]], np.uint8), pixels(1, 3072)], axis=1)
    (tmp_path / "test.bin").write_bytes(record.tobytes())
    source = cifar(tmp_path, split="validation", classes=100)
    assert source[0][1] == 77 and source[0][0].shape == (3, 32, 32)


def test_the_pickled_cifar_is_refused_and_never_read(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("the pickle was read",)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError) as refused:
        cifar(tmp_path)
    text = str(refused.value)
    assert (
        "does not hold data_batch_1.bin" in text and "pickled version, which can run code" in text
    )
    assert text.endswith("Unpack the binary version there: cifar-10-binary.tar.gz.")


def test_cifar_that_is_missing_cut_or_unheard_of_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"does not hold test_batch.bin. Unpack the binary version"):
        cifar(tmp_path, split="validation")
    (tmp_path / "test_batch.bin").write_bytes(bytes(3000))
    with pytest.raises(DataError, match=r"has 3000 bytes, not a whole number of records of 3073"):
        cifar(tmp_path, split="validation")
    with pytest.raises(DataError, match=r"cifar\.classes: there is no CIFAR-20. Use 10 or 100"):
        cifar(tmp_path, classes=20)


def test_digits_are_small_pictures_with_labels():
    with batches(digits(), size=32) as feed:
        batch = next(feed)
    assert batch.inputs.shape == (32, 1, 8, 8) and batch.inputs.dtype == torch.float32
    assert (
        batch.inputs.min() >= 0
        and batch.inputs.max() == 1
        and set(batch.targets.tolist()) <= set(range(10))
    )


def test_without_scikit_learn_digits_name_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        DataError, match=r"digits: needs the package 'sklearn'.* pip install scikit-learn"
    ):
        digits()
