import pytest

from stepladder.data.formats.data_files import existing_path, files_below
from stepladder.errors import DataError


def test_a_missing_path_in_an_empty_folder_says_so(tmp_path):
    with pytest.raises(DataError, match=r"x: '.*/a/b' does not exist; .* It holds nothing\."):
        existing_path(tmp_path / "a" / "b", "x")


def test_a_crowded_folder_is_not_listed_whole(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}").touch()
    with pytest.raises(DataError, match=r"It holds '00', .*'07' and 4 more"):
        existing_path(tmp_path / "something-else", "x")


def test_files_come_in_the_order_of_their_paths_without_the_named_folders(tmp_path):
    for name in ("b/2.TXT", "b/1.txt", "a.txt", "skip/c.txt", "b/skip/d.txt", "z.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = files_below(tmp_path, (".txt",), frozenset({"skip"}))
    assert [path.relative_to(tmp_path).as_posix() for path in found] == [
        "a.txt",
        "b/1.txt",
        "b/2.TXT",
    ]
