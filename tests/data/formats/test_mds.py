import json

import numpy as np
import pytest

from stepladder.data import TokenShards
from stepladder.errors import DataError

from .shard_writers import documents, write_mds

ROWS = documents(20)
EVEN = [[number] * 6 for number in range(20)]


@pytest.mark.parametrize("before", [None, lambda row: b"u" * len(row)], ids=["alone", "with a url"])
@pytest.mark.parametrize("encoding", ["ndarray", "ndarray:uint16", "ndarray:int32:6", "bytes"])
def test_every_encoding_of_ids_is_read(tmp_path, encoding, before):
    folder = write_mds(tmp_path / "set", [EVEN[:9], EVEN[9:]], encoding, before)
    source = TokenShards(folder, 7, packed=True)
    inputs, _ = source.fetch(np.arange(len(source)))
    wanted = np.concatenate(EVEN)[: len(source) * 7]
    assert inputs["tokens"].flatten().tolist() == wanted.tolist()


def changed(tmp_path, **words):
    index = tmp_path / "set" / "index.json"
    held = json.loads(index.read_text())
    held["shards"][0].update(words)
    index.write_text(json.dumps(held))
    with pytest.raises(DataError) as refused:
        TokenShards(tmp_path / "set", 7)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path):
    folder = write_mds(tmp_path / "set", [ROWS])
    shard = folder / "shard.00000.mds"
    assert "holds str, which are not token ids" in changed(tmp_path, column_encodings=["str"])
    assert "holds ndarray of float32, which" in changed(
        tmp_path, column_encodings=["ndarray:float32"]
    )
    assert "lists no column 'input_ids' or 'tokens'; it has x" in changed(
        tmp_path, column_names=["x"]
    )
    assert "lists shards of json of version 2" in changed(tmp_path, format="json")
    words = {"format": "mds", "column_names": ["tokens"], "column_encodings": ["bytes"]}
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9])
    size = f"has {len(whole) - 9} bytes and its index says {len(whole)}. It was cut short"
    assert size in changed(tmp_path, **words)
    shard.rename(folder / "shard.00000.mds.zstd")
    said = changed(tmp_path, zip_data={"basename": "shard.00000.mds.zstd"})
    assert "is compressed and is not unpacked here" in said
    (folder / "index.json").write_text('{"shards": ')
    with pytest.raises(DataError, match=r"index.json' cannot be read"):
        TokenShards(folder, 7)


def test_arrays_of_several_types_in_one_column_are_refused(tmp_path):
    folder = write_mds(tmp_path / "set", [EVEN], "ndarray")
    shard = folder / "shard.00000.mds"
    whole = bytearray(shard.read_bytes())
    second = np.frombuffer(whole, "<u4", 1, 8)[0] + 4  # behind the size of the only column
    assert whole[second] == 16
    whole[second] = 17
    shard.write_bytes(whole)
    with pytest.raises(DataError, match=r"holds arrays of several types, which are not token ids"):
        TokenShards(folder, 7)


def test_shards_of_the_package_itself_are_read(tmp_path):
    streaming = pytest.importorskip(
        "streaming", reason="MosaicML's package is not here: pip install mosaicml-streaming"
    )
    columns = {"tokens": "ndarray:int32", "url": "str"}
    with streaming.MDSWriter(out=str(tmp_path / "set"), columns=columns, size_limit=400) as writer:
        for row in ROWS:
            writer.write({"tokens": np.array(row, np.int32), "url": "u" * len(row)})
    source = TokenShards(tmp_path / "set", 7)
    found = source.fetch(np.arange(len(source)))[0].flatten().tolist()
    assert found == np.concatenate(ROWS)[: len(found)].tolist()
