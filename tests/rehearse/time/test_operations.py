"""What a step's operations multiply, read and write, counted by hand."""

from collections import Counter

import pytest
import torch
from torch import nn

from stepladder.hardware import find_device
from stepladder.plan import Plan
from stepladder.rehearse.rehearse_step import settled_for
from stepladder.rehearse.time.fusion import fused
from stepladder.rehearse.time.host_cost import BEGINNING, HostCost
from stepladder.rehearse.time.operations import (
    ASKING,
    ATTENTION,
    CONVOLUTION,
    COPYING,
    PRODUCT,
    RECURRENT,
)
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
    many = 50 * prices.speeds["fp32"].launch_seconds
    begun = [p for one, p in zip(again, each) if one.again and p.host > many]
    assert len(begun) == 2  # each block once


def test_a_block_that_also_computes_without_gradients_is_asked_for_once():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)

        def forward(self, x):
            x = self.one(x)
            with torch.no_grad():
                turn = torch.cos(x)
            return self.two(x * turn)

    layers = nn.Sequential(*(Block() for _ in range(3)))
    net = nn.Sequential(layers, nn.Linear(WIDE, CLASSES))
    found = operations(net, batch(), "fp32 recompute=blocks")
    prices = prices_of(find_device("H200"), Plan(), None)
    many = 50 * prices.speeds["fp32"].launch_seconds
    dear = [
        o.name for o, price in zip(found, prices.of_all(found)) if o.again and price.host > many
    ]
    assert len(dear) == 3


def test_a_recurrent_layer_takes_its_steps_one_after_another():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = nn.LSTM(WIDE, INNER, 2, batch_first=True), nn.Linear(INNER, 8)

        def forward(self, x):
            return self.head(self.cells(x)[0])

    def cells(steps):
        given = torch.randn(4, steps, WIDE), torch.randint(0, 8, (4, steps))
        return [one for one in operations(Words(), given, "bf16") if one.kind == RECURRENT]

    forward, backward = cells(24)
    assert (forward.lanes, backward.lanes) == (2 * 24, 2 * 24) and backward.backward
    assert forward.products[0][:3] == (4, INNER, 4 * INNER)  # of each step
    assert {shape[:3] for shape in forward.products[1:]} == {
        (4 * 24, WIDE, 4 * INNER), (4 * 24, INNER, 4 * INNER),
    }  # fmt: skip
    prices = prices_of(find_device("H200"), Plan(), None)
    longer = cells(48)[0]
    assert prices.of(longer).device == pytest.approx(2 * prices.of(forward).device, rel=0.1)
    assert prices.of(longer).host == pytest.approx(2 * prices.of(forward).host, rel=0.1)


def test_a_compiler_pads_products_of_odd_vocabularies_and_eager_torch_does_not():
    odd, even = (
        operations(
            nn.Sequential(nn.Linear(WIDE, n)),
            (torch.randn(4096, WIDE), torch.zeros(4096).long()),
            "bf16",
        )
        for n in (1001, 1008)
    )
    for made, slower in ((odd, True), (fused(odd), False)):
        prices = prices_of(find_device("H200"), Plan(), None)
        spent = [
            sum(prices.of(o).device for o in each if o.kind == PRODUCT) for each in (made, even)
        ]
        assert (spent[0] > 1.2 * spent[1]) == slower
    assert sum(one.name == "padded" for one in fused(odd)) >= 1
    assert not any(one.name == "padded" for one in fused(even))


def test_a_step_costs_its_host_more_than_its_kernels_do():
    found = operations(mlp(), batch())
    host = HostCost(1e-5, prices_of(find_device("H200"), Plan(), None).host.factors)
    (begins,) = (one for one in found if one.kind == COPYING)
    assert host.seconds(begins) > BEGINNING * 1e-5
    assert not any(host.seconds(one) for one in found if one.kind == ASKING)
    (plain,) = (one for one in found if one.name == "gelu")
    alone = HostCost(1e-5, host.factors, processor=True)  # which asks itself, in the same caches
    assert host.seconds(plain) > 1.5 * alone.seconds(plain)
