"""An index that comes with the data may not name files outside its folder."""

import json

import pytest

from stepladder.data.formats.data_files import listed_file
from stepladder.data.formats.find_shards import _saved
from stepladder.data.formats.mds import mds_pieces
from stepladder.errors import DataError

OUTSIDE = ["../secret.bin", "/etc/passwd", "a/../../secret.bin", ""]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_out_of_its_folder_is_refused(name, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"secret")
    shard = {
        "format": "mds", "version": 2, "column_names": ["tokens"], "column_sizes": [None],
        "column_encodings": ["bytes"], "samples": 1, "raw_data": {"basename": name, "bytes": 6},
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": [shard]}))
    with pytest.raises(DataError, match=f"names '{name}', which is not in that folder"):
        mds_pieces(folder / "index.json", None, None)
    with pytest.raises(DataError, match="which is not in that folder"):
        _saved(folder, {"_data_files": [{"filename": name}]})


def test_a_file_below_the_folder_is_not_refused(tmp_path):
    assert listed_file(tmp_path, "below/./a.mds", "x") == tmp_path / "below/a.mds"


@pytest.mark.parametrize("text", ['{"shards": [7]}', '{"shards": 7}', "[]", '{"shards": [{}]}'])
def test_an_index_of_another_form_is_refused_in_one_line(text, tmp_path):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(DataError, match="token shards"):
        mds_pieces(tmp_path / "index.json", None, None)
