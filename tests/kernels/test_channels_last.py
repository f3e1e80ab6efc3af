"""Images stored with their channels innermost: other strides, the same numbers."""

import torch
from torch import nn

from stepladder.kernels.channels_last import channels_innermost, read_images
from stepladder.model import build


def test_a_convolutional_net_answers_the_same_in_other_strides():
    module = build("resnet-tiny").eval()
    images = torch.randn(2, 1, 28, 28)
    expected = module(images)
    assert channels_innermost(module)
    weights = [p for p in module.parameters() if p.dim() == 4 and p.shape[2] > 1]
    assert weights and all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
    assert torch.allclose(module(read_images(images)), expected, atol=1e-5)


def test_a_module_without_images_is_left_alone():
    module = nn.Linear(4, 4)
    assert not channels_innermost(module)


def test_only_images_change_their_order():
    inputs = {"image": torch.randn(2, 3, 4, 4), "ids": torch.zeros(2, 3, 4, 4, dtype=torch.long)}
    read = read_images(inputs)
    assert read["image"].stride() == (48, 1, 12, 3)
    assert read["ids"].stride() == inputs["ids"].stride()
