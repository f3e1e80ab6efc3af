"""The built-in mixture of experts, against one that sends every token through every expert."""

import pytest
import torch
from torch.nn import functional as F

from stepladder.errors import PlanError
from stepladder.model import build, count_flops, meta_copy
from stepladder.model.builtin.grouped_product import grouped_loop, grouped_product
from stepladder.model.builtin.mixture import mixtures_of
from stepladder.model.builtin.routing import within_capacity
from stepladder.workload import facts_of_shape, find_shape

torch.set_num_threads(1)
NAMES = ["mixtral-tiny", "olmoe-tiny", "qwen3-moe-tiny"]


def randomised(name, **options):
    """A model whose weights are far from its initial ones, so that routers prefer experts."""
    model = build(name, sequence=16, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.08)
    return model


def dense(mixture, hidden, losses, *, raw, active):
    """Every expert on every token, and a mask of weights."""
    tokens = hidden.reshape(-1, hidden.shape[-1])
    logits = tokens @ mixture.router.weight.T
    p = torch.exp(logits - logits.max(-1, keepdim=True).values)
    p = p / p.sum(-1, keepdim=True)
    threshold = p.sort(-1, descending=True).values[:, active - 1 : active]
    mask = (p >= threshold).to(p.dtype)
    weights = p * mask
    if not raw:
        weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(tokens)
    for expert in range(len(mixture.experts.down)):
        gate, up = mixture.experts.gate_up[expert]
        inside = F.silu(tokens @ gate.T) * (tokens @ up.T)
        out = out + weights[:, expert, None] * (inside @ mixture.experts.down[expert].T)
    if mixture.shared is not None:
        out = out + mixture.shared(tokens)
    share, mean = mask.mean(0).detach(), p.mean(0)
    losses.append(0.01 * len(share) * (share * mean).sum())
    losses.append(0.001 * torch.logsumexp(logits, -1).square().mean())
    return out.view(hidden.shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_mixture_learns_what_the_dense_form_with_explicit_losses_learns(name):
    shape = find_shape(name)
    model, twin = randomised(name), randomised(name)
    tokens = torch.randint(0, shape.vocab, (3, 16), generator=torch.Generator().manual_seed(1))
    targets = tokens.roll(1, 1)
    losses = []
    for _, part in mixtures_of(twin):
        part.forward = lambda hidden, part=part: dense(
            part, hidden, losses, raw=name == "olmoe-tiny", active=shape.active
        )
    logits, expected = model(tokens), twin(tokens)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    whole = F.cross_entropy(expected.flatten(0, 1), targets.flatten())
    (whole + sum(losses) / shape.layers).backward()
    for (label, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert other.grad is not None and other.grad.abs().max() > 0, label
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=2e-6, msg=label)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_as_many_parameters_as_its_shape_says(name):
    model = build(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == find_shape(name).parameters


@pytest.mark.parametrize("name", ["mixtral-8x7b", "olmoe-1b-7b", "qwen3-30b-a3b"])
def test_published_mixtures_are_built_in(name):
    model = build(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == find_shape(name).parameters


@pytest.mark.parametrize("name", NAMES)
def test_flops_counted_on_the_module_are_those_of_its_shape(name):
    counted = count_flops(build(name, sequence=32), torch.zeros(2, 32, dtype=torch.long))
    assert not counted.uncounted
    facts = facts_of_shape(find_shape(name), 32)
    assert counted.forward == pytest.approx(2 * facts.flops_per_sample / 3, rel=1e-3)


def test_layers_without_experts_have_an_mlp():
    model = build("llama:layers=4,hidden=32,heads=2,experts=4,active=2,dense=1", device="meta")
    assert [name for name, _ in mixtures_of(model)] == [f"blocks.{n}.mlp" for n in (1, 2, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_grouped_product_is_a_product_for_each_group_even_an_empty_one(dtype):
    rows = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    matrices = torch.randn(4, 8, 16, dtype=dtype, requires_grad=True)
    ends = torch.tensor([3, 3, 9, 11], dtype=torch.int32)
    weigh = torch.randn(11, 16, dtype=dtype)
    groups = [rows[first:end] for first, end in ((0, 3), (3, 3), (3, 9), (9, 11))]
    expected = torch.cat([group @ matrix for group, matrix in zip(groups, matrices, strict=True)])
    right = torch.autograd.grad((expected * weigh).sum(), (rows, matrices))
    for product in (grouped_product, grouped_loop):
        given = product(rows, matrices, ends)
        torch.testing.assert_close(given, expected)
        found = torch.autograd.grad((given * weigh).sum(), (rows, matrices))
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other)


def test_without_coefficients_the_router_learns_from_the_loss_alone():
    model = randomised("mixtral-tiny", balance=0.0, z_loss=0.0)
    plain = randomised("mixtral-tiny")
    tokens = torch.arange(32).view(2, 16)
    for one in (model, plain):
        one(tokens).logsumexp(-1).mean().backward()
    router, other = (one.blocks[0].mlp.router.weight.grad for one in (model, plain))
    assert not torch.allclose(router, other)
    head, same = (one.head.weight.grad for one in (model, plain))
    torch.testing.assert_close(head, same)


def test_an_expert_has_room_for_the_first_tokens_of_each_sequence():
    chosen = torch.tensor([[0, 1], [0, 1], [0, 2], [0, 3], [1, 0], [1, 2], [3, 2], [2, 1]])
    kept = within_capacity(chosen, experts=4, length=4, factor=1.0)  # two each in a sequence
    assert kept.tolist() == [
        [True, True], [True, True], [False, True], [False, True],
        [True, True], [True, True], [True, True], [False, False],
    ]  # fmt: skip


def test_capacity_does_not_depend_on_the_batch_that_a_sequence_is_in():
    model = randomised("mixtral-tiny", capacity=0.8)
    tokens = torch.randint(0, 256, (4, 16), generator=torch.Generator().manual_seed(3))
    dropped = []
    for _, part in mixtures_of(model):
        part.watch = lambda part, counts, lost: dropped.append(int(lost))
    whole = model(tokens)
    together, dropped[:] = sum(dropped), []
    apart = torch.cat([model(row[None]) for row in tokens])
    assert together == sum(dropped) > 0
    torch.testing.assert_close(whole, apart)


def test_a_coefficient_that_is_no_number_is_refused():
    with pytest.raises(PlanError) as caught:
        build("mixtral-tiny", balance=-1.0)
    assert str(caught.value) == (
        "model.balance: -1.0 is not a number of 0 or more. Use 0 to leave it out."
    )


def test_it_compiles_to_the_same_numbers_without_a_break():
    model = randomised("llama:layers=1,hidden=32,heads=2,vocab=64,ffn=32,experts=4,active=2")
    tokens = torch.arange(32).view(2, 16)
    expected = model(tokens)
    expected.logsumexp(-1).mean().backward()
    right = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    found = torch.compile(model, backend="aot_eager", fullgraph=True)(tokens)
    found.logsumexp(-1).mean().backward()
    torch.testing.assert_close(found, expected)
    for one, other in zip(model.parameters(), right, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-4, atol=1e-6)


def test_a_mixture_is_traced_without_numbers():
    """As a command looks whether a model can read its data, before it trains."""
    model = meta_copy(build("mixtral-tiny", sequence=16))
    out = model(torch.zeros(2, 16, dtype=torch.int64, device="meta"))
    assert out.device.type == "meta" and out.shape[:2] == (2, 16)
