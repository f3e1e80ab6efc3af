"""A convolutional net's first layers on a GPU: folded images, and pooling by our own programs."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import stepladder as sl
from stepladder.kernels import folded_convolution, max_pool
from stepladder.kernels.graph import max_pool_pass
from stepladder.kernels.graph.max_pool_pass import MaxPoolPass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda")
NARROW = torch.bfloat16
INNERMOST = torch.channels_last


def draw(*shape, dtype=torch.float32):
    made = torch.randn(shape, device=GPU, generator=torch.Generator(GPU).manual_seed(0))
    made = made.to(dtype)
    return made.contiguous(memory_format=INNERMOST) if made.dim() == 4 else made


def error(got, wanted):
    """Of all values together, relative."""
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("kernel", "padding", "size"), [(7, 3, 64), (3, 1, 65), (6, 2, 47)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_convolution_is_as_near_the_truth_as_torchs(kernel, padding, size, bias):
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 64, kernel, 2, padding, bias=bias, device=GPU)
    folded = copy.deepcopy(plain)
    assert folded_convolution.fold_first_convolutions(folded) == [""]
    exact = copy.deepcopy(plain).double()
    images = draw(8, 3, size, size)
    results = []
    for part in (exact, plain, folded):
        with torch.autocast("cuda", NARROW, enabled=part is not exact):
            out = part(images.double() if part is exact else images)
        out.backward(torch.ones_like(out) / 64)
        results.append([out, *(p.grad for p in part.parameters())])
    for true, torchs, ours in zip(*results, strict=True):
        assert ours.shape == true.shape
        # One rounding to 8 bits of mantissa of what is multiplied, one of what comes out.
        assert error(ours, true) < max(2**-8, 1.5 * error(torchs, true))


@pytest.mark.parametrize("dtype", [NARROW, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 17, 9), (4, 64, 56, 57), (3, 24, 31, 30), (2, 300, 8, 8)]
)
def test_pooling_is_torchs_to_the_last_tie(shape, dtype):
    images = draw(*shape).mul(2).round().relu().to(dtype)  # few values: nearly all are ties
    images.requires_grad_()
    best, winners = torch.ops.stepladder.max_pool(images)
    expected, places = functional.max_pool2d(images, 3, 2, 1, return_indices=True)
    assert torch.equal(best, expected)
    rows, columns = (torch.arange(n, device=GPU) for n in best.shape[2:])
    y, x = 2 * rows[:, None] - 1 + winners // 3, 2 * columns - 1 + winners % 3
    assert torch.equal(y * shape[3] + x, places)
    weights = draw(*best.shape).mul(4).round().to(dtype)  # whole numbers: their sums are exact
    grads = [torch.autograd.grad(out, images, weights)[0] for out in (best, expected)]
    assert torch.equal(*grads)
    got = torch.ops.stepladder.max_pool(images)[0], functional.max_pool2d(images, 3, 2, 1)
    weights = draw(*best.shape, dtype=dtype)
    grads = [torch.autograd.grad(out, images, weights)[0] for out in got]
    allowed = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(*grads, rtol=allowed, atol=allowed)


def test_pooling_takes_what_is_no_number_as_torch_does():
    chosen = torch.randint(0, 4, (4, 64, 30, 33), generator=torch.Generator().manual_seed(0))
    images = torch.tensor([float("nan"), -float("inf"), 0.0, -1.0])[chosen]
    images[0, 0] = -float("inf")
    # On a CPU: torch's programs differ in which pixel they name where all are minus infinity.
    expected, places = functional.max_pool2d(images, 3, 2, 1, return_indices=True)
    images = images.to(GPU, NARROW).contiguous(memory_format=INNERMOST)
    best, winners = (made.cpu() for made in torch.ops.stepladder.max_pool(images))
    torch.testing.assert_close(best.float(), expected, rtol=0, atol=0, equal_nan=True)
    rows, columns = (torch.arange(n) for n in best.shape[2:])
    y, x = 2 * rows[:, None] - 1 + winners // 3, 2 * columns - 1 + winners % 3
    assert torch.equal(y * 33 + x, places)


def test_more_than_32_bits_of_pixels_are_addressed():
    images = torch.zeros(1030, 64, 256, 256, device=GPU, dtype=torch.float16)
    images = images.to(memory_format=INNERMOST)  # 4.3 billion values
    assert max_pool.fits_triton(images) and images.numel() > 2**32
    images[-1, :, -1, -1] = 1
    best, winners = torch.ops.stepladder.max_pool(images)
    assert best[-1, :, -1, -1].eq(1).all() and best.float().sum() == 64
    grown = torch.ops.stepladder.max_pool_gradient(best, winners, 256, 256)
    assert torch.equal(grown, images)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).to(GPU, memory_format=INNERMOST)  # fmt: skip


def test_a_compiled_net_learns_the_same_by_ours(monkeypatch):
    taken = []
    is_worth_it = max_pool_pass.is_worth_it
    monkeypatch.setattr(
        max_pool_pass, "is_worth_it", lambda node: taken.append(is_worth_it(node)) or taken[-1]
    )
    images, ends = draw(16, 3, 128, 128), []
    for ours in (False, True):
        module = net()
        options = {"pre_grad_custom_pass": MaxPoolPass()} if ours else None
        assert not ours or folded_convolution.fold_first_convolutions(module) == ["0"]
        torch._dynamo.reset()
        compiled = torch.compile(module, options=options, fullgraph=True)
        with torch._inductor.config.patch(force_disable_caches=True):
            with torch.autocast("cuda", NARROW):
                out = compiled(images)
            out.float().square().sum().backward()
        ends.append([out.detach(), *(p.grad for p in module.parameters())])
    assert taken == [True]  # the compiler knows channels to be innermost
    for plain, own in zip(*ends, strict=True):
        assert error(own, plain) < 0.03


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
def test_a_run_learns_as_one_without(precision):
    ends = []
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(32, 3, 128, 128, generator=generator), torch.arange(32) % 10
    for kernels in ("on", "off"):
        torch.manual_seed(0)
        torch._dynamo.reset()
        run = sl.climb(
            sl.build("resnet18"), loss="cross_entropy", optimizer="sgd lr=0.02", device="cuda",
            plan=f"{precision} compile=on kernels={kernels}",
        )  # fmt: skip
        ends.append([float(run.step(batch).loss) for _ in range(6)])
        assert any("folded first convolution on: stem.0" in event for event in run.events) == (
            kernels == "on"
        )
    torch.testing.assert_close(torch.tensor(ends[0]), torch.tensor(ends[1]), rtol=0.03, atol=0.03)
