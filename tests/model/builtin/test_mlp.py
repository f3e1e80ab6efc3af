"""The multilayer perceptron."""

import torch

from stepladder.model import build
from stepladder.model.builtin.mlp import MLP


def test_whatever_follows_the_batch_is_one_row():
    model, images = build("mlp-tiny"), torch.randn(3, 8, 8)
    torch.testing.assert_close(model(images), model(images.flatten(1)))
    assert model(images).shape == (3, 10)


def test_missing_parts_are_passed_by():
    whole, first, last = (build("mlp-tiny") for _ in range(3))
    first.blocks[1] = first.head = None
    last.embed = last.blocks[0] = None
    inputs = torch.randn(2, 64)
    torch.testing.assert_close(last(first(inputs)), whole(inputs))


def test_its_blocks_are_as_many_as_asked_for():
    assert len(MLP(layers=5).anatomy.blocks) == 5
