"""Hugging Face's `datasets`: their objects as sources, and the folders that they save."""

import numpy as np
import pytest
import torch

import stepladder as sl
from stepladder.data import batches, open_source
from stepladder.errors import DataError
from stepladder.plan.recipe import DataChoice

datasets = pytest.importorskip("datasets", reason="pip install datasets")
datasets.disable_progress_bars()

ROWS = [[number % 50] * (5 + number % 7) for number in range(300)]
TEXTS = [f"text number {number} and its words. " for number in range(200)]


@pytest.fixture(scope="module")
def tokens():
    return datasets.Dataset.from_dict({"input_ids": ROWS, "labels": ROWS})


def opened(source, split="train", **settings):
    choice = DataChoice(source=str(source), **settings)
    return open_source(choice, length=16, vocabulary=256, split=split)


def flat(source):
    return np.concatenate([source[index][0] for index in range(len(source))]).tolist()


@pytest.mark.parametrize("kind", [None, "torch", "numpy"])
def test_a_dataset_is_a_source_in_any_of_its_formats_and_goes_on_from_any_position(tokens, kind):
    data = tokens.with_format(kind)
    with batches(data, size=8, stop=32, workers=0) as feed:
        whole = list(feed)
    with batches(data, size=8, start=16, stop=32, workers=0) as feed:
        rest = list(feed)
    assert [batch.position for batch in rest] == [16, 24]
    for batch, again in zip(whole[2:], rest):
        assert torch.equal(batch.inputs["input_ids"], again.inputs["input_ids"])
        assert batch.inputs["input_ids"].dtype == torch.int64
        assert batch.inputs["labels"].min() == -100  # the shorter rows are filled


def test_what_was_chosen_shuffled_or_made_on_the_way_is_read_so(tokens):
    chosen = tokens.select(range(40)).shuffle(seed=1)
    with batches(chosen, size=4, stop=4, workers=0, shuffle=False) as feed:
        (batch,) = feed
    assert batch.inputs["input_ids"][:, 0].tolist() == [row[0] for row in chosen["input_ids"][:4]]
    pictures = datasets.Dataset.from_dict({"labels": [0, 1] * 4}).with_transform(
        lambda rows: {"pixel_values": [torch.ones(3, 4, 4) * k for k in rows["labels"]], **rows}
    )
    with batches(pictures, size=2, stop=2, workers=0, shuffle=False) as feed:
        (batch,) = feed
    assert batch.inputs["pixel_values"].shape == (2, 3, 4, 4)
    assert batch.inputs["labels"].tolist() == [0, 1]


def test_a_run_on_a_saved_dataset_goes_on_with_the_same_bits(tokens, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens.save_to_disk(tmp_path / "saved")
    data = datasets.load_from_disk(str(tmp_path / "saved"))
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=16,
    )  # fmt: skip

    def run(steps, folder=None):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
        taken = sl.climb(model, optimizer="sgd lr=0.1", plan="fp32 micro=4", device="cpu")
        if folder:
            taken.load(folder)
        with taken.batches(data, size=8) as feed:
            losses = [report.loss for report in sl.fit(taken, feed, steps=steps)]
        return taken, losses

    _, whole = run(4)
    first, begun = run(2)
    first.save(tmp_path / "run")
    _, rest = run(4, tmp_path / "run")
    assert begun + rest == whole


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            lambda data: datasets.DatasetDict({"train": data, "test": data}),
            "source: a DatasetDict has keys, not positions. Give one of its parts: data['train'].",
        ),
        (
            lambda data: data.to_iterable_dataset(),
            "source: IterableDataset has no length and index, so no sample can be addressed by its "
            "position. Give a stream to run.batches, a list of its samples, list(...), or write "
            "its tokens to a file for TokenFile.",
        ),
        (
            lambda data: data.add_column("text", TEXTS[:1] * 300),
            "text is str, not numbers. Tokenise it, or leave it out of the sample.",
        ),
    ],
)
def test_what_has_no_positions_or_no_numbers_is_one_line(tokens, data, said):
    with (
        pytest.raises(DataError) as refused,
        batches(data(tokens), size=8, stop=8, workers=0) as feed,
    ):
        next(feed)
    assert str(refused.value).endswith(said)


def test_a_saved_folder_is_token_files_and_its_parts_are_taken_as_they_are(tokens, tmp_path):
    tokens.save_to_disk(tmp_path / "one", num_shards=3)
    every = np.concatenate(ROWS).tolist()
    parts = flat(opened(tmp_path / "one")), flat(opened(tmp_path / "one", "validation"))
    assert len(parts[0]) > 8 * len(parts[1]) > 0
    held = tokens.select(range(50))
    datasets.DatasetDict({"train": tokens, "test": held}).save_to_disk(tmp_path / "both")
    assert flat(opened(tmp_path / "both")) == every[: len(every) // 16 * 16]
    few = np.concatenate(ROWS[:50]).tolist()
    assert flat(opened(tmp_path / "both", "validation")) == few[: len(few) // 16 * 16]
    inputs, _ = opened(tmp_path / "both", packed=True)[0]
    assert inputs["documents"].tolist() == [0] * 5 + [1] * 6 + [2] * 5
    datasets.DatasetDict({"train": tokens, "extra": held}).save_to_disk(tmp_path / "odd")
    with pytest.raises(DataError, match=r"holds the parts train, extra. Name one, such as '.*/t"):
        opened(tmp_path / "odd")


@pytest.mark.parametrize("ending", ["saved", "a.parquet", "a.feather"])
def test_a_column_of_text_is_encoded_a_document_a_row(tmp_path, ending):
    data = datasets.Dataset.from_dict({"text": [*TEXTS, "", None], "other": [1] * 202})
    path = tmp_path / ending
    if ending == "saved":
        data.save_to_disk(path)
    elif ending == "a.parquet":
        data.to_parquet(path)
    else:
        import pyarrow.feather

        pyarrow.feather.write_feather(data.data.table, str(path))
    every = list("".join(TEXTS).encode())
    taken = flat(opened(path))
    assert taken == every[: len(taken)]
    assert (
        flat(opened(path, "validation")) == every[-(len(every) // 10) :][: len(every) // 160 * 16]
    )
    assert set(opened(path, packed=True)[0][0]) == {"tokens", "documents", "positions"}
    assert opened(path, column="text")[0][0].tolist() == every[:16]
    with pytest.raises(DataError, match=r"data.dtype: 'uint16' says nothing of "):
        opened(path, dtype="uint16")
    with pytest.raises(DataError, match=r"'other' of '.*' holds int64, not lists of whole numbers"):
        opened(path, column="other")
