"""ResNet, held against the published numbers of parameters."""

import pytest
import torch

from stepladder.model import build

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("name", "parameters", "blocks"), [("resnet18", 11_689_512, 8), ("resnet50", 25_557_032, 16)]
)
def test_it_has_the_published_parameters(name, parameters, blocks):
    model = build(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.anatomy.blocks) == blocks


@pytest.mark.parametrize("size", [8, 28])
def test_the_tiny_one_reads_small_images(size):
    assert build("resnet-tiny")(torch.randn(2, 1, size, size)).shape == (2, 10)


def test_each_stage_but_the_first_halves_the_image():
    model, sizes = build("resnet-tiny"), []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: sizes.append(out.shape[-1]))
    model(torch.randn(1, 1, 16, 16))
    assert sizes == [16, 8, 4]


def test_channels_last_gives_the_same_answer():
    model, images = build("resnet-tiny").eval(), torch.randn(2, 1, 16, 16)
    before = model(images)
    model.to(memory_format=torch.channels_last)
    after = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(after, before)


def test_missing_parts_are_passed_by():
    whole, first, last = (build("resnet-tiny").eval() for _ in range(3))
    first.blocks[2] = first.head = None
    last.stem = last.blocks[0] = last.blocks[1] = None
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(last(first(images)), whole(images))
