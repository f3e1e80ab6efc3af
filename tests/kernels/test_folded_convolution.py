"""A first convolution over folded images: the same sums, by the same parameters."""

import copy
import pickle
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.kernels import folded_convolution as stem
from stepladder.kernels.folded_convolution import convolve_folded, fold_first_convolutions

NARROW = torch.bfloat16


def conv(*, inputs=3, kernel=7, stride=2, padding=3, **more):
    torch.manual_seed(0)
    made = nn.Conv2d(inputs, 8, kernel, stride, padding, **more)
    return made.to(memory_format=torch.channels_last)


def images(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator, dtype=dtype)


@pytest.fixture
def folded(monkeypatch):
    """How often the folded way was taken."""
    calls = []

    def counted(*given):
        calls.append(given[0].dtype)
        return convolve_folded(*given)

    monkeypatch.setattr(stem, "convolve_folded", counted)
    return calls


SIDES = [(3, 0), (3, 1), (4, 0), (4, 1), (5, 2), (6, 3), (7, 2), (7, 3)]  # taps, padding


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("side", SIDES)
def test_values_and_gradients_are_those_of_torchs_convolution(side, channels):
    for other, (height, width), bias in product(SIDES, [(12, 15), (17, 8)], [True, False]):
        (tall, top), (wide, left) = side, other
        pictures = images(2, channels, height, width, dtype=torch.float64)
        weight = images(5, channels, tall, wide, dtype=torch.float64).requires_grad_()
        given = weight, images(5, dtype=torch.float64).requires_grad_() if bias else None
        wanted = [t for t in given if t is not None]
        results = []
        for way in (
            functional.conv2d(pictures, *given, 2, (top, left)),
            convolve_folded(pictures, *given, (top, left)),
        ):
            results.append([way, *torch.autograd.grad(way.square().sum(), wanted)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_channels_are_filled_up_to_eights_and_stored_innermost():
    made = stem.fold(images(2, 3, 6, 8))
    assert made.shape == (2, 16, 3, 4)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert not made[:, 12:].any() and made[:, :12].all()


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (conv(), True),
        (conv(inputs=4, kernel=(3, 5), padding=(1, 0), bias=False), True),
        (conv(inputs=8), False),
        (conv(stride=1), False),
        (conv(stride=(2, 1)), False),
        (conv(kernel=2, padding=0), False),
        (conv(dilation=2), False),
        (conv(inputs=4, groups=2), False),
        (conv(padding_mode="reflect"), False),
        (conv(padding="valid"), False),
        (nn.Linear(3, 3), False),
    ],
)
def test_convolutions_over_few_channels_with_stride_2_are_found(part, found):
    net = nn.Sequential(part, nn.ReLU())
    assert fold_first_convolutions(net, "cpu") == (["0"] if found else [])
    assert fold_first_convolutions(net, "cpu") == []  # once is enough


class Counted(nn.Conv2d):
    def forward(self, given):
        return 2 * super().forward(given)


class Scaled(nn.Conv2d):
    def _conv_forward(self, *given):
        return 2 * super()._conv_forward(*given)


@pytest.mark.parametrize("kind", [Counted, Scaled])
def test_one_that_computes_more_is_left_alone(kind):
    assert fold_first_convolutions(kind(3, 8, 7, 2, 3)) == []


@pytest.mark.parametrize("bias", [True, False])
def test_autocast_learns_folded_as_it_does_without(folded, bias):
    plain = conv(bias=bias)
    ours = copy.deepcopy(plain)
    fold_first_convolutions(ours, "cpu")
    assert ours.state_dict().keys() == plain.state_dict().keys()
    for part in (plain, ours):
        with torch.autocast("cpu", NARROW):
            out = part(images(2, 3, 20, 18))
        assert out.dtype == NARROW
        out.float().square().sum().backward()
    assert folded == [NARROW]
    for (name, a), b in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert b.grad.shape == a.shape and b.grad.dtype == torch.float32, name
        assert (a.grad - b.grad).norm() < 0.01 * a.grad.norm(), name  # two sums of 8-bit mantissas


def test_a_module_stored_in_16_bits_is_folded_too(folded):
    part = conv().to(NARROW)
    fold_first_convolutions(part, "cpu")
    given = images(1, 3, 8, 8).to(NARROW)
    expected = functional.conv2d(given.float(), part.weight.float(), part.bias.float(), 2, 3)
    torch.testing.assert_close(part(given).float(), expected, rtol=0.02, atol=0.02)
    assert folded == [NARROW]


def in_autocast(part, given):
    with torch.autocast("cpu", NARROW):
        return part(given)


def test_what_is_no_stem_on_matrix_units_goes_its_own_way(folded):
    part, given = conv(), images(2, 3, 9, 9)
    own = part(given)
    fold_first_convolutions(part, "cpu")
    assert torch.equal(part(given), own)  # in float32
    in_autocast(part, given.clone().requires_grad_())  # made by something
    in_autocast(part, given[0])
    wide = conv().double()
    fold_first_convolutions(wide, "cpu")
    assert in_autocast(wide, given.double()).dtype == torch.float64  # which autocast leaves alone
    elsewhere = conv()
    fold_first_convolutions(elsewhere)  # on a GPU, where this is not
    in_autocast(elsewhere, given)
    assert not folded
    in_autocast(part, given)
    assert folded


def test_a_product_of_two_types_is_refused_by_torch(folded):
    part = conv().to(NARROW)
    fold_first_convolutions(part, "cpu")
    with pytest.raises(RuntimeError):
        part(images(1, 3, 8, 8))
    assert not folded


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_multiplies_by_its_own_weight(folded, again):
    part = conv(bias=False)
    fold_first_convolutions(part, "cpu")
    twin = again(part)
    nn.init.zeros_(part.weight)
    assert in_autocast(twin, images(1, 3, 8, 8)).any()
    nn.init.zeros_(twin.weight)
    assert not in_autocast(twin, images(1, 3, 8, 8)).any()
    assert len(folded) == 2


def test_the_compiler_sees_it_whole():
    torch._dynamo.reset()
    net = nn.Sequential(conv(), nn.ReLU())
    expected = in_autocast(net, images(2, 3, 11, 12))
    fold_first_convolutions(net, "cpu")
    seen = []

    def look(module, _):
        products = [node for node in module.graph.nodes if node.target is torch.conv2d]
        seen.extend(tuple(node.args[0].meta["example_value"].shape) for node in products)
        return module.forward

    got = in_autocast(torch.compile(net, backend=look, fullgraph=True), images(2, 3, 11, 12))
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
    assert seen == [(2, 16, 9, 9)]
