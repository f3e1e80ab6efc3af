"""Images stored channels-last: other strides, the same numbers."""

import torch
from torch import nn

from stepladder.kernels.channels_last import (
    has_convolutions,
    images_channels_last,
    store_channels_last,
)
from stepladder.model import build


def test_a_convolutional_net_answers_the_same_in_other_strides():
    module = build("resnet-tiny").eval()
    images = torch.randn(2, 1, 28, 28)
    expected = module(images)
    assert has_convolutions(module)
    store_channels_last(module)
    weights = [p for p in module.parameters() if p.dim() == 4 and p.shape[2] > 1]
    assert weights and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    assert torch.allclose(module(images_channels_last(images)), expected, atol=1e-5)


def test_a_module_without_images_is_left_alone():
    module = nn.Linear(4, 4)
    assert not has_convolutions(module)


def test_only_images_change_their_order():
    inputs = {"image": torch.randn(2, 3, 4, 4), "ids": torch.zeros(2, 3, 4, 4, dtype=torch.long)}
    read = images_channels_last(inputs)
    assert read["image"].stride() == (48, 1, 12, 3)
    assert read["ids"].stride() == inputs["ids"].stride()
