"""One net on the same images: rows that learn, rows without a GPU, files of MNIST."""

import numpy as np
import pytest
import torch

from stepladder.bench.device.image_training import (
    NO_GPU,
    ROWS,
    DeviceRow,
    ImageTask,
    image_task,
    judge,
    measure_device,
    measure_devices,
    start,
)
from stepladder.data.images.drawn_digits import drawn_digits


def small(**given):
    train, test = drawn_digits(64, seed=0), drawn_digits(20, seed=1)
    return ImageTask("few", train, test, batch=32, epochs=1, width=2, **given)


def test_a_row_trains_judges_and_measures():
    row = measure_device(small(), DeviceRow("cpu", "fp32"))
    assert row.images_per_second * row.seconds == pytest.approx(64)
    assert 0 <= row.accuracy <= 1 and row.loss > 0 and not row.problem
    weights = sum(p.numel() for p in small().make().parameters()) * 4
    assert row.peak_bytes > 4 * weights + 32 * 28 * 28 * 4, "state of AdamW, and the images"


def test_rows_begin_with_the_same_weights_and_differ_in_precision():
    wide, narrow = (start(small(), DeviceRow("cpu", name)) for name in ("fp32", "bf16"))
    for mine, other in zip(wide.module.parameters(), narrow.module.parameters()):
        assert torch.equal(mine, other)
    assert str(wide.plan.precision) == "fp32" and str(narrow.plan.precision) == "bf16"


def test_what_is_judged_is_what_the_module_answers():
    run = start(small(), DeviceRow("cpu", "fp32"))
    images = drawn_digits(1100)  # in three parts
    run.module.eval()
    with torch.no_grad():
        answers = run.module(images.pixels.float() / 255).argmax(1)
    assert judge(run, images) == pytest.approx((answers == images.labels).float().mean().item())


def test_without_a_gpu_its_rows_say_so(monkeypatch):
    said = "stepladder.bench.device.image_training.measure_device"
    monkeypatch.setattr(said, lambda task, row: row)  # what is trained is tested above
    rows = list(measure_devices(small(), gpu=False))
    assert [(row.device, row.precision) for row in rows] == list(ROWS)
    assert [row.problem for row in rows] == ["", "", NO_GPU, NO_GPU, NO_GPU]


def test_a_plan_that_cannot_run_is_a_row_with_its_reason():
    first, *_ = measure_devices(small(words="graphs=on"), gpu=False)
    assert first.seconds is None and first.problem.startswith("graphs: ")


def write_idx(path, array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


@pytest.mark.parametrize("word", ["", "mnist:"])
def test_files_of_mnist_are_trained_on_where_they_are(tmp_path, word):
    for prefix, count in (("train", 6), ("t10k", 3)):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte", np.ones((count, 28, 28), np.uint8))
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8))
    task = image_task(f"{word}{tmp_path}", batch=3, epochs=5)
    assert (len(task.train), len(task.test), task.steps) == (6, 3, 10)
    assert task.name == f"MNIST in {tmp_path.name}"
