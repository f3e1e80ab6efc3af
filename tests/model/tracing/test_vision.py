"""torchvision's and timm's models as they are: described, and trained on one rank and on two.

Both need a torchvision built for the torch that is here. Where torch has no CUDA the wheel of the
package index is built for one that has, and its operators for boxes cannot be loaded; its models
use none of them, so here they are declared and never run. That wheel breaks `import transformers`
in the same environment, so it is kept apart:

    pip install --no-deps --target vision torchvision==0.28.0 timm
    PYTHONPATH=vision python -m pytest tests/model/tracing/test_vision.py
"""

import importlib

import pytest
import torch

import stepladder as sl
from stepladder.data import Arrays
from stepladder.model import find_anatomy
from stepladder.verify import Subject
from tests.parity.pool import compare

BOXES = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def library(name: str):
    """The package, or a reason to skip."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pytest.skip(f"{name} needs torchvision, which is not installed")
    except RuntimeError:  # built for a torch with CUDA
        for word, schema in BOXES.items():
            torch.library.define(f"torchvision::{word}", schema)
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


def pictures(side: int) -> Arrays:
    draw = torch.Generator().manual_seed(1)
    return Arrays(
        torch.randn(192, 3, side, side, generator=draw),
        torch.randint(0, 10, (192,), generator=draw),
    )


def resnet18():
    """Of 32 pixels a side its last norms would see two numbers, and make rounding large."""
    return library("torchvision").models.resnet18(num_classes=10), pictures(64), "cross_entropy"


def vit():
    models = library("torchvision").models
    made = models.VisionTransformer(
        image_size=16, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32,
        num_classes=10,
    )  # fmt: skip
    return made, pictures(16), "cross_entropy"


def timm_vit():
    made = library("timm").create_model(
        "vit_tiny_patch16_224", num_classes=10, img_size=32, depth=2, embed_dim=32, num_heads=4
    )
    return made, pictures(32), "cross_entropy"


def timm_convnext():
    made = library("timm").create_model(
        "convnext_atto", num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 16, 16)
    )
    return made, pictures(32), "cross_entropy"


PLANS = [
    (resnet18, "fp32 zero3"),
    (vit, "fp32 zero3"),
    (timm_vit, "fp32 tensor=2"),
    (timm_vit, "fp32 pipeline=2"),
    (timm_convnext, "fp32 ddp"),
]


@pytest.mark.parametrize(("make", "plan"), PLANS, ids=lambda one: getattr(one, "__name__", one))
def test_two_ranks_compute_what_one_does(make, plan, tmp_path):
    make()
    found = compare(tmp_path, Subject(make.__name__, make), plan, steps=2)
    assert (found.verdict, found.problem) == ("same", "")


@pytest.mark.parametrize("make", [resnet18, timm_vit])
def test_they_are_described_and_have_blocks(make):
    module, samples, _ = make()
    facts = sl.describe(module, sample=samples[0][0].unsqueeze(0))
    assert facts.parameters == sum(p.numel() for p in module.parameters())
    assert len(find_anatomy(module).blocks) >= 2
