import json

import pytest

from stepladder.data.formats.find_shards import find_shards, holds_shards
from stepladder.errors import DataError

from .shard_writers import documents, save_dataset, write_mds, write_megatron


def refusal(shards):
    with pytest.raises(DataError) as refused:
        find_shards(shards)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_folder_and_a_pattern_lead_to_the_same_files_by_name(tmp_path):
    for name in ("b", "a"):
        write_megatron(tmp_path / f"{name}.bin", documents(3))
    found = [tmp_path / "a.bin", tmp_path / "b.bin"]
    assert find_shards(tmp_path) == find_shards(f"{tmp_path}/*") == find_shards(found) == found
    assert holds_shards(tmp_path)


def test_a_saved_dataset_keeps_its_own_order(tmp_path):
    folder = save_dataset(tmp_path / "set", documents(6))
    assert [path.name for path in find_shards(folder)] == [
        "data-00001-of-00002.arrow",
        "data-00000-of-00002.arrow",
    ]
    (folder / "data-00000-of-00002.arrow").unlink()
    assert "data-00000-of-00002.arrow' does not exist" in refusal(folder)


def test_a_dataset_in_parts_or_with_a_list_of_rows_is_refused(tmp_path):
    folder = save_dataset(tmp_path / "set", documents(6))
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "_indices_files": [{"filename": "i"}]}))
    assert "was saved with rows chosen or shuffled by a list beside the table" in refusal(folder)
    (folder / "state.json").write_text("{")
    assert "state.json' cannot be read" in refusal(folder)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    said = refusal(tmp_path)
    assert "holds the parts train, test. Name one, such as " in said and "/train'" in said
    assert holds_shards(tmp_path)


def test_an_mds_folder_is_its_index(tmp_path):
    folder = write_mds(tmp_path / "set", [documents(3)])
    assert find_shards(folder) == [folder / "index.json"]


def test_what_leads_to_no_file_is_refused(tmp_path):
    assert "no file was given. Name a file, a folder or a pattern." in refusal([])
    assert f"no file matches '{tmp_path}/*.bin'. Check the pattern" in refusal(f"{tmp_path}/*.bin")
    assert "holds no file ending in .bin, .npy" in refusal(tmp_path) and not holds_shards(tmp_path)
    assert "does not exist" in refusal(tmp_path / "x.bin")
    (tmp_path / "a.idx").touch()
    assert "token file: " in refusal(tmp_path) and "a.bin' does not exist" in refusal(tmp_path)
