"""Many files as one source: the same windows and packed rows as one array, in every format."""

import pickle

import numpy as np
import pytest
import torch

from stepladder.data import TokenShards, batches
from stepladder.data.formats.token_files import TokenWindows
from stepladder.data.packing import pack
from stepladder.errors import DataError
from stepladder.model import build

from .shard_writers import (
    documents,
    save_dataset,
    write_feather,
    write_mds,
    write_megatron,
    write_parquet,
    write_raw,
    write_stream,
)

DOCUMENTS = documents(40)


def halves(folder, write, ending):
    write(folder / f"a{ending}", DOCUMENTS[:25])
    write(folder / f"b{ending}", DOCUMENTS[25:])
    return folder


def several_sequences(path, rows):
    return write_megatron(path, rows, "uint16", sequences_each=2)


def in_mds(encoding, **settings):
    def make(folder):
        return write_mds(folder / "set", [DOCUMENTS[:25], DOCUMENTS[25:]], encoding, **settings)

    return make


FORMATS = {
    "megatron": lambda folder: halves(folder, write_megatron, ".bin"),
    "megatron, sequences": lambda folder: halves(folder, several_sequences, ".bin"),
    "parquet": lambda folder: halves(folder, write_parquet, ".parquet"),
    "parquet without counts": lambda folder: write_parquet(
        folder / "a.parquet", DOCUMENTS, write_statistics=False
    ),
    "feather": lambda folder: halves(folder, write_feather, ".feather"),
    "compressed feather": lambda folder: write_feather(
        folder / "a.feather", [document * 40 for document in DOCUMENTS], "zstd"
    ),
    "stream": lambda folder: halves(folder, write_stream, ".arrow"),
    "saved dataset": lambda folder: save_dataset(folder / "set", DOCUMENTS),
    "mds, arrays": in_mds("ndarray:int32"),
    "mds, typed arrays": in_mds("ndarray", before=lambda row: b"x" * len(row)),
    "mds, bytes": in_mds("bytes"),
}


def expected(kind):
    return [document * 40 for document in DOCUMENTS] if kind.startswith("compr") else DOCUMENTS


@pytest.mark.parametrize("kind", FORMATS)
def test_windows_of_a_format_are_those_of_one_array(tmp_path, kind):
    source = TokenShards(FORMATS[kind](tmp_path), 7)
    wanted = TokenWindows(np.concatenate(expected(kind)), 7)
    every = np.arange(len(wanted))
    assert len(source) == len(wanted)
    for found, right in zip(source.fetch(every), wanted.fetch(every)):
        assert torch.equal(found, right)
    again = pickle.loads(pickle.dumps(source))
    assert torch.equal(again[3][0], wanted[3][0])


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_rows_of_a_format_are_those_of_its_documents(tmp_path, kind):
    source = TokenShards(FORMATS[kind](tmp_path), 7, packed=True)
    inputs, targets = source.fetch(np.arange(len(source)))
    wanted, wanted_targets = pack(expected(kind), 7).fetch(np.arange(len(source)))
    assert torch.equal(targets, wanted_targets)
    assert all(torch.equal(inputs[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_raw_files_are_one_row_of_windows_and_a_file_ends_a_document(tmp_path, dtype):
    for name, first in (("a", 0), ("b", 30), ("c", 41)):
        last = {"a": 30, "b": 41, "c": 100}[name]
        write_raw(tmp_path / f"{name}.bin", range(first, last), dtype)
    np.save(tmp_path / "d.npy", np.arange(100, 120))
    source = TokenShards(tmp_path, 9, dtype=dtype)
    inputs, targets = source.fetch(np.arange(len(source)))
    assert inputs.flatten().tolist() == list(range(117)) and torch.equal(inputs + 1, targets)
    packed = TokenShards(f"{tmp_path}/*.bin", 99, dtype=dtype, document_end=50)
    opened = (packed[0][0]["positions"] == 0).nonzero().flatten().tolist()
    assert opened == [0, 30, 41, 51]


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("write", [write_megatron, write_parquet, write_stream])
def test_no_gradient_leaks_from_one_document_of_a_shard_into_another(tmp_path, kind, write):
    ending = {write_megatron: "bin", write_parquet: "parquet", write_stream: "arrow"}[write]
    rows = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14, 15, 16, 17]]
    path = write(tmp_path / f"a.{ending}", rows)
    inputs, _ = TokenShards(path, 12, packed=True).fetch(np.array([0]))
    model = build(f"{kind}:layers=2,hidden=16,heads=2,vocab=32", seed=0, sequence=12)
    embedded = []
    model.embedding.register_forward_hook(lambda *call: embedded.append(call[2]))

    def seen_by(place, **inputs):
        embedded.clear()
        output = model(**inputs)[0, place].square().sum()
        (gradient,) = torch.autograd.grad(output, embedded)
        return (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()

    assert seen_by(7, **inputs) == [3, 4, 5, 6, 7]
    assert seen_by(8, **inputs) == [8]
    assert seen_by(7, tokens=inputs["tokens"]) == list(range(8))


@pytest.mark.parametrize("kind", ["megatron", "parquet"])
def test_a_run_resumes_at_any_position_of_shards_on_any_ranks(tmp_path, kind):
    path = FORMATS[kind](tmp_path)

    def walk(start, stop, share=None):
        with batches(
            TokenShards(path, 7), size=4, start=start, stop=stop, share=share, workers=0
        ) as feed:
            return [batch.targets for batch in feed]

    through = walk(0, 80)
    assert torch.equal(torch.cat(walk(44, 80)), torch.cat(through[11:]))
    parts = [
        walk(44, 80, lambda step, size, rank=rank: np.arange(rank, size, 2)) for rank in (0, 1)
    ]
    for step, (even, odd) in enumerate(zip(*parts)):
        assert torch.equal(torch.stack([even, odd], 1).flatten(0, 1), through[11 + step])


def test_decoded_pieces_are_held_within_a_bound_and_decoded_once_a_walk(tmp_path):
    rows = [[number % 50] * 50 for number in range(400)]
    source = TokenShards(write_parquet(tmp_path / "a.parquet", rows, group=4), 10)
    stretches, opened = source._rows.tokens, []
    assert len(stretches.pieces) == 100 and stretches.max_open == 33
    open_one = stretches._open
    stretches._open = lambda piece: opened.append(piece.name) or open_one(piece)
    with batches(source, size=20, stop=len(source), workers=0) as feed:
        for _ in feed:
            assert len(stretches._open_pieces) <= 33
    assert len(opened) <= 2 * 100  # a shuffle of all windows would decode for nearly each of 1999


def test_several_names_are_read_in_the_order_given(tmp_path):
    first, second = (write_raw(tmp_path / f"{name}.bin", [name] * 8, "uint8") for name in (2, 1))
    source = TokenShards([first, second], 5, dtype="uint8")
    assert source.fetch(np.arange(3))[0].flatten().tolist() == [2] * 8 + [1] * 7
    assert source.where(1) == f"tokens 5 to 10 of '{first}' to '{second}'"


def test_a_file_of_another_kind_and_an_unknown_type_are_refused(tmp_path):
    (tmp_path / "a.zip").touch()
    with pytest.raises(DataError, match=r"a.zip' does not end as token files do. Known are .bin"):
        TokenShards(tmp_path / "a.zip", 8)
    with pytest.raises(DataError, match=r"'uint61' is not a type of token id"):
        TokenShards(tmp_path / "a.bin", 8, dtype="uint61")


def test_a_missing_index_among_files_that_have_one_is_refused(tmp_path):
    halves(tmp_path, write_megatron, ".bin")
    (tmp_path / "b.idx").unlink()
    with pytest.raises(DataError, match=r"b.idx' is missing, and 'a.bin' beside it has one. Rest"):
        TokenShards(tmp_path, 8)


def test_raw_files_cannot_be_packed_without_an_end(tmp_path):
    path = write_raw(tmp_path / "a.bin", range(99))
    with pytest.raises(DataError, match=r"packed: '.*a.bin' does not say where documents begin"):
        TokenShards(path, 8, packed=True)


def test_ids_of_a_table_beyond_the_vocabulary_are_found_when_they_are_read(tmp_path):
    source = TokenShards(write_parquet(tmp_path / "a.parquet", DOCUMENTS), 7, vocabulary=20)
    with pytest.raises(
        DataError, match=r"a.parquet' holds token \d+ and the vocabulary ends at 19"
    ):
        source.fetch(np.arange(len(source)))
