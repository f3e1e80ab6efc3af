"""The value that says where a model's blocks are."""

import pytest
from torch import nn

from stepladder.errors import ModelError
from stepladder.model import Anatomy, build


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))


def test_blocks_come_in_order_with_their_names():
    net = Net()
    found = Anatomy(blocks=("layers.0", "layers.2")).blocks_of(net)
    assert found == [("layers.0", net.layers[0]), ("layers.2", net.layers[2])]


def test_a_part_set_to_none_lives_on_another_stage():
    model = build("gpt-tiny", device="meta")
    model.blocks[0] = model.blocks[1] = None
    assert [name for name, _ in model.anatomy.blocks_of(model)] == ["blocks.2", "blocks.3"]


def test_a_module_without_blocks_says_so():
    with pytest.raises(ModelError) as caught:
        Anatomy().blocks_of(nn.Linear(2, 2))
    assert str(caught.value) == (
        "Linear: has no list of blocks. Lists of blocks found: none. "
        "Give it an nn.ModuleList of like modules, or an `anatomy` that names them."
    )


def test_a_wrong_name_is_answered_with_the_lists_there_are():
    with pytest.raises(ModelError) as caught:
        Anatomy(blocks=("blocks.0",)).blocks_of(Net())
    assert str(caught.value) == "Net: has no part named 'blocks.0'. Lists of blocks found: layers."


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "mlp-tiny", "resnet-tiny", "vit-tiny"])
def test_every_built_in_anatomy_names_every_part_once(name):
    model = build(name, device="meta")
    anatomy = model.anatomy
    named = (*anatomy.entry, *anatomy.blocks, *anatomy.exit)
    covered = [p for part in named for p in model.get_submodule(part).parameters()]
    assert {id(p) for p in covered} == {id(p) for p in model.parameters()}
    assert len(set(named)) == len(named)
    block = model.get_submodule(anatomy.blocks[0])
    assert all(isinstance(block.get_submodule(cut), nn.Linear) for cut in anatomy.cuts)
