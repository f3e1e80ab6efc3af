"""Parts are found where they run; a model without a list of blocks is cut between its parts."""

import pytest
import torch
from torch import nn

from stepladder.model import find_anatomy
from stepladder.rungs.pipeline.stage_parts import find_parts, is_shareable

from .chains import ALL, Answering, Shuffled


def found(name, num_stages=2):
    make, batches, _ = ALL[name]
    module = make()
    return find_parts(module, find_anatomy(module), num_stages, batches(1)[0][0])


def test_parts_go_where_they_run_whatever_the_order_of_their_registration():
    record, blocks, others = found("shuffled")
    assert (len(blocks), others) == (4, ["norm", "out", "enter"])
    assert record.uses() == {"enter": {0}, "norm": {4}, "out": {4}}


@pytest.mark.parametrize(
    ("name", "num_stages", "blocks"),
    [
        ("plain", 2, ["first", "second", "third", "fourth"]),
        ("sequential", 2, ["0", "2"]),
        ("sequential", 3, ["0.0", "0.2", "2"]),
    ],
)
def test_a_model_without_blocks_is_cut_between_its_parts(name, num_stages, blocks):
    assert found(name, num_stages)[1] == blocks


def test_a_list_of_lists_is_cut_between_its_entries():
    assert found("pairs")[1][1:5] == ["layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1"]


class Reaching(Shuffled):
    """Calls the children of a part, and not the part."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.ModuleDict({"a": nn.Linear(64, 16)})
        self.tail = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 10))

    def forward(self, x):
        hidden = self.stem["a"](x)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.tail[1](self.tail[0](hidden).relu())


def test_a_part_whose_children_are_called_is_taken_apart():
    module = Reaching()
    _, _, others = find_parts(module, find_anatomy(module), 2, torch.zeros(1, 64))
    assert {"stem.a", "tail.0", "tail.1"} <= {*others} and "tail" not in others


def test_a_part_with_dropout_or_larger_than_the_blocks_is_not_on_every_stage():
    module = Answering()
    blocks = [f"layers.{index}" for index in range(4)]
    assert is_shareable(module, blocks, "table")
    module.table = nn.Embedding(1000, 16)
    assert not is_shareable(module, blocks, "table")
    module.table = nn.Sequential(nn.Embedding(8, 16), nn.Dropout(0.1))
    assert not is_shareable(module, blocks, "table")
