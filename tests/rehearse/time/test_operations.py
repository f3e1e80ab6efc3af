"""What a step's operations multiply, read and write, counted by hand."""

from collections import Counter

import pytest
import torch
from torch import nn

from stepladder.hardware import find_device
from stepladder.plan import Plan
from stepladder.rehearse.rehearse_step import settled_for
from stepladder.rehearse.time.fusion import fused
from stepladder.rehearse.time.operations import ASKING, ATTENTION, CONVOLUTION, PRODUCT
from stepladder.rehearse.time.prices import prices_of
from stepladder.rehearse.time.step_time import step_operations

ROWS, WIDE, INNER, CLASSES = 32, 64, 128, 16


def operations(module, batch, plan="fp32", device="cuda", loss="cross_entropy"):
    settled = settled_for(plan, "adamw lr=1e-3 clip=1", 1, device)
    return step_operations(module, settled, sample=batch, loss=loss, device=device)[0]


def mlp():
    return nn.Sequential(nn.Linear(WIDE, INNER), nn.GELU(), nn.Linear(INNER, CLASSES))


def batch():
    return torch.randn(ROWS, WIDE), torch.randint(0, CLASSES, (ROWS,))


def test_a_step_has_each_product_and_those_of_its_gradients_once():
    found = operations(mlp(), batch())
    products = Counter(tuple(shape[:4]) for one in found for shape in one.products)
    assert products == Counter({
        (ROWS, WIDE, INNER, 1): 1, (ROWS, INNER, CLASSES, 1): 1,
        (CLASSES, ROWS, INNER, 1): 1, (ROWS, CLASSES, INNER, 1): 1, (INNER, ROWS, WIDE, 1): 1,
    })  # fmt: skip
    assert {one.compute for one in found if one.products} == {"fp32"}


def test_cheap_operations_move_what_they_read_and_write_and_views_nothing():
    found = operations(mlp(), batch())
    (gelu,) = (one for one in found if one.name == "gelu")
    assert gelu.num_bytes == 2 * 4 * ROWS * INNER
    (back,) = (one for one in found if one.name == "gelu_backward")
    assert back.num_bytes == 3 * 4 * ROWS * INNER
    assert all(not one.num_bytes for one in found if one.kind == ASKING)


def test_an_update_is_one_call_for_all_tensors_with_everything_that_it_touches():
    found = operations(mlp(), batch())
    (update,) = (one for one in found if "adamw" in one.name)
    parameters = sum(p.numel() for p in mlp().parameters())
    assert update.tensors == 4
    assert update.num_bytes == pytest.approx(4 * 4 * parameters, rel=0.01)  # and the step counts


def test_autocast_multiplies_in_16_bits_and_casts_each_weight_once():
    found = operations(mlp(), batch(), "bf16")
    assert {one.compute for one in found if one.products} == {"bf16"}
    casts = [one for one in found if one.name == "_to_copy" and one.phase == "forward"]
    assert {WIDE * INNER, INNER * CLASSES} <= {one.writes[0].elements for one in casts}


def test_images_and_attention_are_told_with_their_shapes():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, CLASSES))
    images = torch.randn(4, 3, 8, 8), torch.randint(0, CLASSES, (4,))
    found = [one for one in operations(net, images) if one.kind == CONVOLUTION]
    assert [one.products[0][:3] for one in found] == [(4 * 64, 27, 8)] * 2
    assert len(found[1].products) == 1  # nobody asks for the gradient of the images
    layer = nn.TransformerEncoderLayer(WIDE, 4, INNER, dropout=0.0, batch_first=True)
    words = torch.randn(2, 24, WIDE), torch.randint(0, WIDE, (2, 24))
    attended = [one for one in operations(layer, words) if one.kind == ATTENTION]
    assert [one.backward for one in attended] == [False, True]
    assert attended[0].attention[:6] == (2, 4, 4, 24, 24, WIDE // 4)


def test_a_compiler_makes_one_kernel_of_a_chain_and_keeps_what_products_need():
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(WIDE, INNER), nn.Linear(INNER, CLASSES)

        def forward(self, x):
            x = self.first(x)
            return self.second(x * torch.sigmoid(x) + torch.tanh(x))

    found = operations(Chain(), batch(), "bf16")
    made = fused(found)
    chain = [one for one in made if one.name == "fused" and one.phase == "forward"]
    size = 2 * ROWS * INNER
    middle = [one for one in chain if one.num_bytes == 2 * size]
    assert middle, [one.num_bytes / size for one in chain]  # the first product's answer in, one out
    assert len(made) < sum(one.kind != ASKING for one in found)
    before = sum(one.num_bytes for one in found if not one.products)
    assert sum(one.num_bytes for one in made if not one.products) < before
    products = [one for one in found if one.kind == PRODUCT]
    assert [one for one in made if one.kind == PRODUCT] == products


def test_what_is_computed_again_in_backward_is_known_as_such():
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU()) for _ in range(2)))
    net = nn.Sequential(layers, nn.Linear(WIDE, CLASSES))
    plain, again = (operations(net, batch(), f"fp32{words}") for words in ("", " recompute=blocks"))
    assert not any(one.again for one in plain)
    first = [one for one in again if one.name == "addmm" and one.writes[0].elements == ROWS * WIDE]
    assert [one.again for one in first] == [False, False, True, True]
    prices = prices_of(find_device("H200"), Plan(), None)
    each = prices.of_all(again)
    begun = [p for one, p in zip(again, each) if p.host > 50 * prices.speeds["fp32"].launch_seconds]
    assert len(begun) == 2  # each block once
