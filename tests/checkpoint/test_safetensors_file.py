"""Files of tensors are what the safetensors library reads, and no header is believed."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from stepladder.checkpoint.reader import from_pairs
from stepladder.checkpoint.safetensors_file import DTYPE_CODES, open_tensors
from stepladder.errors import RecordError
from tests.checkpoint.files import hash_file, write_tensors

TENSORS = {
    "byte": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "wide": torch.randn(3, 5, dtype=torch.float64),
    "half": torch.randn(7).bfloat16(),
    "empty": torch.empty(0, 4),
    "number": torch.tensor(3.5),
    "turned": torch.randn(4, 6).t(),
    "truth": torch.tensor([True, False]),
}


def test_the_library_reads_what_was_written(tmp_path):
    path = tmp_path / "x.safetensors"
    written = write_tensors(path, TENSORS)
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert written.size == path.stat().st_size
    assert written.digest == hash_file(path, written.hash)


def test_what_the_library_wrote_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    whole = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(whole, path, metadata={"format": "pt"})
    with open_tensors(path) as file:
        assert set(file.names()) == set(whole)
        for name, tensor in whole.items():
            assert torch.equal(file.tensor(name), tensor)


@pytest.mark.parametrize("dtype", DTYPE_CODES, ids=str)
def test_every_type_comes_back_to_the_bit(tmp_path, dtype):
    tensor = torch.arange(16, dtype=torch.uint8).clamp(max=1).view(dtype)
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": tensor})
    with open_tensors(path) as file:
        found = from_pairs(file.tensor("x"), dtype)
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_reading_cannot_change_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    before = write_tensors(path, {"x": torch.ones(4)})
    with open_tensors(path) as file:
        file.tensor("x").zero_()
    assert hash_file(path, before.hash) == before.digest


HEADERS = [
    {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 9999]}},
    {"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}},
    {"x": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
    {"x": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}},
    {"x": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}},
    {"x": 3},
    [1],
]


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_a_header_that_cannot_be_true_is_refused(tmp_path, header):
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    with pytest.raises(RecordError, match="is not a file of tensors"), open_tensors(path):
        pass


@settings(max_examples=200)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(RecordError) as raised, open_tensors(path) as file:
        assert file.names() == []
        raise RecordError("checkpoint", "empty and true", "Nothing.")
    assert "\n" not in str(raised.value)


def test_a_name_that_is_not_there_says_so(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.ones(1)})
    with open_tensors(path) as file, pytest.raises(RecordError, match="holds no 'y'"):
        file.tensor("y")
