"""Pictures and texts of a training loop reach its journal, small whatever they were."""

import io
from base64 import b64decode

import numpy as np
import pytest
import torch
from PIL import Image

from stepladder.errors import RecordError
from stepladder.record import read_journal
from stepladder.train import climb
from stepladder.train.reporting.logged_samples import MAX_LETTERS, MAX_SIDE, read_sample
from tests.train.toys import net, pairs


def pixels(sample):
    """The picture as another program reads it: height, width and channels."""
    return np.asarray(Image.open(io.BytesIO(b64decode(read_sample("x", sample)["png"]))))


def test_a_picture_is_written_pixel_by_pixel():
    grey = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    assert (pixels(grey) == grey.numpy()).all()
    colour = torch.randint(0, 256, (3, 5, 7), dtype=torch.uint8)
    assert (pixels(colour) == colour.permute(1, 2, 0).numpy()).all()
    assert (pixels(colour.permute(1, 2, 0).numpy()) == colour.permute(1, 2, 0).numpy()).all()


def test_numbers_are_brightness_and_others_are_stretched():
    assert pixels(torch.tensor([[0.0, 0.5, 1.0]])).tolist() == [[0, 128, 255]]
    assert pixels(torch.tensor([[-2.0, 0.0, 2.0]])).tolist() == [[0, 128, 255]]


def test_a_batch_is_one_picture_side_by_side():
    batch = torch.stack([torch.full((1, 4, 4), value) for value in (0.2, 0.4, 0.6)])
    found = pixels(batch)
    assert found.shape == (12, 12)
    assert found[0, 0] == 51 and found[0, 6] == 102 and found[6, 0] == 153 and found[6, 6] == 255


def test_what_is_large_is_made_small():
    assert pixels(torch.zeros(3, 1000, 500)).shape == (MAX_SIDE, MAX_SIDE // 2, 3)
    assert len(read_sample("x", "a" * 30_000)["text"]) == MAX_LETTERS + 2


def test_samples_of_a_run_lie_in_its_journal(tmp_path):
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with run.open_journal(tmp_path) as journal:
        for batch in pairs(2):
            journal.write("step", **run.step(batch).to_dict())
        run.log_sample("answer", "so it is")
        run.log_sample("face", torch.rand(3, 8, 8), step=0)
    answer, face = read_journal(tmp_path, kind="sample")
    assert answer == {"kind": "sample", "step": 1, "name": "answer", "text": "so it is"}
    assert (face["step"], face["name"]) == (0, "face") and face["png"].startswith("iVBORw0KGgo")
    *_, last = read_journal(tmp_path)
    assert last == {"kind": "end"}
    assert next(read_journal(tmp_path, kind="step"))["unit"] == "samples"


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (
            {},
            "log.x: a dict is neither a text nor a picture. Give a string, or a tensor of pixels.",
        ),
        (
            torch.zeros(2, 5, 5),
            "log.x: a tensor of shape (2, 5, 5) is no picture. Shape it (height",
        ),
        (torch.tensor([[float("nan")]]), "log.x: some pixels are NaN or Inf. Use torch.nan_to_num"),
    ],
)
def test_what_is_no_picture_is_told_in_one_line(sample, said):
    with pytest.raises(RecordError) as refused:
        read_sample("x", sample)
    assert str(refused.value).startswith(said)


def test_a_sample_needs_a_journal():
    run = climb(net(), loss="cross_entropy", plan="fp32", device="cpu")
    with pytest.raises(RecordError) as refused:
        run.log_sample("x", "a")
    assert str(refused.value) == (
        "log.x: the run has no journal to keep it in. "
        "Log it inside 'with run.open_journal(folder):'."
    )
