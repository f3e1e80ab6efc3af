"""Faster kernels change only what wins on the device at hand."""

from types import SimpleNamespace

import pytest
import torch

from stepladder.kernels.choose import Fused, fuse
from stepladder.loss import make_loss
from stepladder.model import build, find_anatomy
from stepladder.plan import Layout


def world(ranks=1, device="cpu"):
    return SimpleNamespace(layout=Layout(replicate=ranks), device=torch.device(device))


def test_nothing_changes_where_nothing_wins():
    module = build("resnet-tiny")
    loss = make_loss("cross_entropy", module)
    fused = fuse(module, find_anatomy(module), loss, world(), wanted=True)
    assert fused == Fused(loss)

    def keep(x):
        return x

    assert fused.reading(keep) is keep
    assert fused.around(keep) is keep
    assert fused.loss is loss


def test_images_are_read_as_they_are_stored():
    fused = Fused(make_loss("cross_entropy", torch.nn.Linear(1, 1)), images=True)
    image = torch.randn(1, 3, 2, 2)
    assert fused.reading(lambda x: x)(image).stride() == (12, 1, 6, 3)


@pytest.mark.parametrize(("ranks", "wanted", "fused"), [(1, True, 1), (2, True, 0), (1, False, 0)])
def test_the_head_is_fused_where_it_is_wanted_and_the_rank_is_alone(ranks, wanted, fused):
    module = build("gpt:layers=1,hidden=8,heads=1,vocab=32768,sequence=4")
    loss = make_loss("cross_entropy", module)
    found = fuse(module, find_anatomy(module), loss, world(ranks), wanted)
    assert (found.head is not None) == fused


@pytest.mark.parametrize(("hidden", "asked", "eight"), [(1024, 1, 1), (256, 1, 0), (1024, 0, 0)])
def test_the_head_multiplies_in_8_bits_where_the_plan_does_and_it_pays(hidden, asked, eight):
    text = f"gpt:layers=1,hidden={hidden},heads=1,vocab=32768,sequence=4"
    module = build(text, device="meta")
    loss = make_loss("cross_entropy", module)
    found = fuse(module, find_anatomy(module), loss, world(), True, eight=bool(asked))
    assert found.head.eight == eight


@pytest.mark.parametrize(
    ("device", "wanted", "folded"), [("cuda", 1, 1), ("cuda", 0, 0), ("cpu", 1, 0)]
)
def test_a_first_convolution_is_folded_on_a_gpu_where_it_is_wanted(device, wanted, folded):
    module = build("resnet18", device="meta")
    loss = make_loss("cross_entropy", module)
    found = fuse(module, find_anatomy(module), loss, world(device=device), bool(wanted))
    note = "kernels: stem.0 takes images folded two by two where it multiplies in 16 bits"
    assert found.notes == [note] * folded
    changed = [name for name, part in module.named_modules() if "_conv_forward" in vars(part)]
    assert changed == ["stem.0"] * folded
