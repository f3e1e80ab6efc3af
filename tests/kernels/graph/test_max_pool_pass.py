"""Max pooling of the kind is found in a module's graph, and nothing else is taken for it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.kernels import max_pool
from stepladder.kernels.graph import max_pool_pass
from stepladder.kernels.graph.max_pool_pass import MaxPoolPass

pool = functional.max_pool2d
OURS = torch.ops.stepladder.max_pool.default


@pytest.fixture
def any_size(monkeypatch):
    """Every pooling is_worth_it here."""
    monkeypatch.setattr(max_pool_pass, "is_worth_it", lambda images: True)


def passed_over(call, images):
    """What a call computes once the pass went over its graph, and how many are ours then."""
    found = []

    def look(module, _):
        MaxPoolPass()(module.graph)
        module.graph.lint()
        module.recompile()
        found.extend(node for node in module.graph.nodes if node.target is OURS)
        return module.forward

    torch._dynamo.reset()
    return torch.compile(call, backend=look, fullgraph=True)(images), len(found)


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (nn.MaxPool2d(3, 2, 1), 1),
        (lambda x: pool(x, 3, 2, 1), 1),
        (lambda x: pool(x, 3, [2], padding=(1, 1), dilation=1, ceil_mode=False), 1),
        (lambda x: pool(input=x, kernel_size=(3, 3), stride=(2, 2), padding=1), 1),
        (lambda x: torch.max_pool2d(x, 3, 2, 1), 1),
        (lambda x: pool(pool(x, 3, 2, 1), 3, 2, 1), 2),
        (lambda x: pool(x, 3, 2), 0),
        (lambda x: pool(x, 3, padding=1), 0),
        (lambda x: pool(x, 2, 2, 1), 0),
        (lambda x: pool(x, (3, 2), 2, 1), 0),
        (lambda x: pool(x, 3, (2, 1), 1), 0),
        (lambda x: pool(x, 3, 2, 1, 2), 0),
        (lambda x: pool(x, 3, 2, 1, ceil_mode=True), 0),
        (lambda x: pool(x, 3, 2, 1, return_indices=True)[0], 0),
        (nn.AvgPool2d(3, 2, 1), 0),
    ],
)
def test_only_poolings_of_the_kind_become_ours(any_size, call, ours):
    images = torch.randn(2, 4, 8, 10)
    got, found = passed_over(call, images)
    assert found == ours
    assert torch.equal(got, call(images))


def test_the_compiler_takes_ours_with_its_gradient(any_size, monkeypatch):
    taken, plain = [], max_pool._torch_backward
    monkeypatch.setattr(max_pool, "_torch_backward", lambda *t: (taken.append(t), plain(*t)))
    # Nothing but the pooling: there is then nothing to compile, which takes a minute.
    call = nn.MaxPool2d(3, 2, 1)
    images = torch.randint(0, 3, (2, 3, 8, 9)).float().requires_grad_()
    grads = []
    for run in (call, torch.compile(call, options={"pre_grad_custom_pass": MaxPoolPass()})):
        out = run(images)
        grads.append((out, *torch.autograd.grad(out.square().sum(), images)))
    assert len(taken) == 1
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def example(*shape, innermost=True, device="cuda", dtype=torch.bfloat16):
    """A node of a value as the compiler knows it: no memory behind it."""
    order = torch.channels_last if innermost else torch.contiguous_format
    node = torch.fx.Graph().placeholder("images")
    with torch._subclasses.FakeTensorMode():
        node.meta["example_value"] = torch.empty(
            shape, device=device, dtype=dtype, memory_format=order
        )
    return node


@pytest.mark.parametrize(
    ("count", "options", "ours"),
    [
        (8, {}, True),
        (8, {"dtype": torch.float32}, True),
        (2, {}, False),  # over as soon as it is started
        (8, {"device": "cpu"}, False),
        (8, {"innermost": False}, False),
        (8, {"dtype": torch.float64}, False),
    ],
)
def test_only_many_images_on_a_gpu_with_channels_innermost_pay(count, options, ours):
    assert max_pool_pass.is_worth_it(example(count, 64, 56, 56, **options)) == ours


def test_what_is_one_image_or_of_unknown_value_does_not_pay():
    assert not max_pool_pass.is_worth_it(example(64, 256, 256, innermost=False))
    assert not max_pool_pass.is_worth_it(torch.fx.Graph().placeholder("images"))
