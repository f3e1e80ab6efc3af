"""Training never sees what validation holds, and a part tells what its source tells."""

import numpy as np
import pytest
import torch

from stepladder.data import Arrays, TokenFile, TokenShards
from stepladder.data.locality_order import LocalityOrder
from stepladder.data.source import order_of
from stepladder.data.validation_split import SplitSource
from tests.data.formats.shard_writers import write_parquet


@pytest.mark.parametrize("length", [1, 9, 10, 97, 1000])
def test_the_two_parts_are_the_whole_and_share_nothing(length):
    source = Arrays(np.arange(length))
    parts = [SplitSource(source, split) for split in ("train", "validation")]
    seen = [int(part[index]) for part in parts for index in range(len(part))]
    assert sorted(seen) == list(range(length))
    assert len(parts[1]) == max(length // 10, 1)


def test_fetching_many_is_fetching_each():
    part = SplitSource(Arrays(np.arange(50)), "train")
    many = part.fetch(np.array([3, 1, 7]))
    assert torch.as_tensor(many).tolist() == [int(part[i]) for i in (3, 1, 7)]


def test_a_source_without_fetch_is_read_one_by_one():
    assert SplitSource([10, 20, 30], "train").fetch(np.array([0])) is None


def test_a_part_knows_its_window_and_where_a_sample_lies(tmp_path):
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    part = SplitSource(TokenFile(tmp_path / "tokens.bin", length=10), "validation")
    assert part.length == 10
    assert "tokens.bin" in part.where(0)
    assert SplitSource([1, 2], "train").where(0).startswith("sample ")
    with pytest.raises(AttributeError):
        _ = part.nothing


def test_the_held_tenth_of_a_table_is_its_last_and_neighbours_stay_together(tmp_path):
    rows = [[number] * 10 for number in range(200)]
    source = TokenShards(write_parquet(tmp_path / "a.parquet", rows, group=20), 10)
    train, held = (SplitSource(source, split) for split in ("train", "validation"))
    assert len(train) == 180 and train.block == 20
    firsts = [part.fetch(np.arange(len(part)))[0][:, 0].tolist() for part in (train, held)]
    assert firsts == [list(range(180)), list(range(180, 199))]
    assert isinstance(order_of(train, 0, True), LocalityOrder)
    assert held.where(0) == source.where(180)
