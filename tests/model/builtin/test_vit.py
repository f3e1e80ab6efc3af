"""The vision transformer, held against the published numbers of parameters."""

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.model import build, set_attention

torch.set_num_threads(1)
SMALL = {"image": 8, "patch": 4, "channels": 1, "layers": 2, "classes": 10}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit-tiny", 5_717_416), ("vit-small", 22_050_664), ("vit-base", 86_567_656)],
)
def test_it_has_the_published_parameters(name, parameters):
    model = build(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_every_patch_is_seen():
    model, image = build("vit-tiny", **SMALL), torch.randn(1, 1, 8, 8, requires_grad=True)
    model(image).sum().backward()
    assert (image.grad != 0).all()


def test_the_formula_answers_alike():
    model, images = build("vit-tiny", **SMALL), torch.randn(2, 1, 8, 8)
    before = model(images)
    set_attention(model, "plain")
    torch.testing.assert_close(model(images), before)


def test_missing_parts_are_passed_by():
    whole, first, last = (build("vit-tiny", **SMALL) for _ in range(3))
    first.blocks[1] = first.norm = first.head = None
    last.patches = last.blocks[0] = None
    images = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(last(first(images)), whole(images))


def test_a_patch_that_does_not_divide_the_image_names_the_nearest_images():
    with pytest.raises(PlanError) as caught:
        build("vit-tiny", image=30, patch=7)
    assert str(caught.value) == (
        "model.patch: 7 does not divide image=30. Nearest images: 28 or 35."
    )
