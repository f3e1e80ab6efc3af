import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from stepladder.errors import PlanError
from stepladder.measure import measure_memory
from stepladder.model import worth_saving
from stepladder.model.tracing.selective_checkpoint import has_dropout
from stepladder.plan import Recompute
from stepladder.rungs import measure_blocks
from stepladder.rungs.memory.recompute import recompute
from tests.soak import soak_after

torch.set_num_threads(1)
aten = torch.ops.aten
WIDTH, HEADS, LENGTH, BATCH = 32, 4, 16, 3
WAYS = ["none", "blocks", "selective", "every:2", "every:3"]


class Block(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, scale=None, *, shift=None):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, w)))
        if scale is not None:
            x = x * scale
        x = x + self.drop(self.down(nn.functional.gelu(self.up(self.second(x)))))
        return (x if shift is None else x + shift), b


class Stack(nn.Module):
    def __init__(self, num_blocks: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(num_blocks))
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def forward(self, x):
        for block in self.blocks:
            x, _ = block(x, self.scale, shift=x.detach().mean())
        return x


def named(model: Stack) -> list[tuple[str, nn.Module]]:
    return [(f"blocks.{i}", block) for i, block in enumerate(model.blocks)]


def build(how: str, **options) -> Stack:
    torch.manual_seed(0)
    model = Stack(**options)
    recompute(named(model), Recompute.parse(how))
    return model


def train(model: nn.Module, steps: int = 3, autocast: bool = False) -> list[torch.Tensor]:
    """Losses and final parameters of plain SGD, which forgives no wrong gradient."""
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    seen = []
    for _ in range(steps):
        x = torch.randn(BATCH, LENGTH, WIDTH)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(x).float().square().mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        seen.append(loss.detach())
    return [*seen, *(p.detach() for p in model.parameters())]


def kept_bytes(model: nn.Module) -> int:
    """What autograd itself holds after a forward pass, kept results of products left out."""
    sizes = {}
    own = {p.untyped_storage()._cdata for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = (storage.nbytes(), tensor.detach())
        return tensor.detach()

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(torch.randn(BATCH, LENGTH, WIDTH))
    del out
    return sum(size for address, (size, _) in sizes.items() if address not in own)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_losses_and_updates_are_the_same_to_the_bit_with_dropout(how, autocast):
    plain = train(build("none"), autocast=autocast)
    again = train(build(how), autocast=autocast)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("how", soak_after(["selective", "blocks"]))
def test_a_compiled_model_recomputes_the_same(how):
    plain = train(
        torch.compile(build("none", num_blocks=2, dropout=0.0), backend="aot_eager"), steps=2
    )
    again = build(how, num_blocks=2, dropout=0.0)
    again = train(torch.compile(again, backend="aot_eager", fullgraph=True), steps=2)
    torch._dynamo.reset()
    assert all(
        torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(plain, again, strict=True)
    )


@pytest.mark.parametrize("how", soak_after(["selective", "blocks"]))
def test_a_block_compiled_by_itself_recomputes_the_same(how):
    plain, again = build("none", dropout=0.0), build(how, dropout=0.0)
    for block in again.blocks:
        block.compile(backend="aot_eager")
    close = [torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(train(plain), train(again))]
    torch._dynamo.reset()
    assert all(close)


def test_the_named_blocks_are_the_ones_recomputed():
    torch.manual_seed(0)
    model = Stack(5)
    assert recompute(named(model), Recompute.parse("every:2")) == (
        "blocks.0",
        "blocks.2",
        "blocks.4",
    )
    calls = dict.fromkeys(range(5), 0)
    for index, block in enumerate(model.blocks):
        block.norm.register_forward_hook(lambda *_, i=index: calls.update({i: calls[i] + 1}))
    model(torch.randn(1, LENGTH, WIDTH)).sum().backward()
    assert calls == {0: 2, 1: 1, 2: 2, 3: 1, 4: 2}


def test_selective_computes_the_cheap_again_and_not_the_products():
    model = build("selective", num_blocks=1)
    calls = {"products": 0, "norms": 0}
    counted = {aten.addmm.default: "products", aten.native_layer_norm.default: "norms"}

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op in counted:
                calls[counted[op]] += 1
            return op(*args, **(kwargs or {}))

    with Count():
        loss = model(torch.randn(1, LENGTH, WIDTH)).sum()
        forward = dict(calls)
        loss.backward()
    assert forward == {"products": 4, "norms": 2}
    # addmm is a product with a bias, which the backward pass itself never runs
    assert calls == {"products": 4, "norms": 4}


def test_less_is_kept():
    kept = {how: kept_bytes(build(how)) for how in ("none", "every:2", "blocks")}
    assert kept["blocks"] < kept["every:2"] < kept["none"]
    block_input = BATCH * LENGTH * WIDTH * 4
    # four inputs, the three shifts' four bytes each, and the last output is nobody's to keep
    assert kept["blocks"] == 4 * (block_input + 4)


def test_class_names_and_signature_stay():
    plain, again = Stack(), Stack()
    recompute(named(again), Recompute("blocks"))
    assert [type(m) for m in plain.modules()] == [type(m) for m in again.modules()]
    assert list(plain.state_dict()) == list(again.state_dict())
    assert inspect.signature(again.blocks[0].forward) == inspect.signature(plain.blocks[0].forward)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_computes_with_its_own_parameters(duplicate):
    model = build("blocks", dropout=0.0)
    other = duplicate(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    x = torch.randn(1, LENGTH, WIDTH)
    other(x).sum().backward()
    assert other.blocks[0].up.weight.grad is not None
    assert not torch.equal(other(x), model(x))


def test_choosing_again_replaces_the_choice_and_none_takes_it_back():
    model = Stack()
    recompute(named(model), Recompute("blocks"))
    recompute(named(model), Recompute("blocks"))
    calls = []
    model.blocks[0].norm.register_forward_hook(lambda *_: calls.append(1))
    model(torch.randn(1, LENGTH, WIDTH)).sum().backward()
    assert len(calls) == 2
    assert recompute(named(model), Recompute()) == ()
    assert not any("forward" in block.__dict__ for block in model.blocks)


def test_nothing_is_recomputed_without_gradients():
    model = build("blocks")
    with torch.no_grad():
        model(torch.randn(1, LENGTH, WIDTH))
    with torch.inference_mode():
        model(torch.randn(1, LENGTH, WIDTH))


def test_attention_scores_are_computed_again_and_their_use_is_kept():
    q, k = torch.randn(2, 64, 8), torch.randn(2, 8, 64)
    scores, values = torch.randn(2, 64, 64), torch.randn(2, 64, 8)
    assert not worth_saving(aten.bmm.default, (q, k), {})
    assert worth_saving(aten.bmm.default, (scores, values), {})


def test_an_attention_that_drops_out_is_computed_again_because_it_draws():
    op = aten._scaled_dot_product_flash_attention.default
    q = torch.randn(1, 1, 4, 8)
    assert worth_saving(op, (q, q, q), {}) and worth_saving(op, (q, q, q, 0.0, True), {})
    assert not worth_saving(op, (q, q, q, 0.1), {}) and has_dropout(
        op, (q, q, q), {"dropout_p": 0.1}
    )


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn", "flash_attention_for_cpu"])
def test_every_attention_kernel_of_torch_is_known_to_be_dear(name):
    kinds = [
        op for op in dir(aten) if op.startswith("_scaled_dot_product") and "backward" not in op
    ]
    assert [k for k in kinds if name in k]
    q = torch.randn(1, 1, 4, 8)
    for kind in kinds:
        if "math" not in kind:
            assert worth_saving(getattr(aten, kind).default, (q, q, q), {})


def test_a_hugging_face_layer_recomputes_the_same_and_fills_no_cache_twice():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, attention_dropout=0.1,
    )  # fmt: skip

    def losses(how):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        assert model.config.use_cache
        layers = model.model.layers
        recompute([(str(i), layer) for i, layer in enumerate(layers)], Recompute.parse(how))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        seen = []
        for _ in range(2):
            ids = torch.randint(0, 64, (2, 16))
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            sgd.step()
            sgd.zero_grad()
            seen.append(loss.item())
        return [*seen, sum(p.detach().double().sum().item() for p in model.parameters())]

    assert losses("none") == losses("blocks") == losses("selective")


def test_a_list_that_grows_after_the_call_is_recomputed_as_it_was():
    """As DenseNet's layers are given the list of all features so far."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, features):
            return self.linear(sum(features))

    def gradients(how):
        torch.manual_seed(0)
        layers = nn.ModuleList(Layer() for _ in range(3))
        recompute([(str(i), layer) for i, layer in enumerate(layers)], Recompute.parse(how))
        features = [torch.randn(2, 4)]
        for layer in layers:
            features.append(layer(features))
        sum(features).sin().sum().backward()
        return [parameter.grad for parameter in layers.parameters()]

    assert all(map(torch.equal, gradients("none"), gradients("blocks")))


def test_a_cache_handed_over_by_position_is_not_filled_twice():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=64, n_positions=8)

    def gradients(how):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()  # no dropout
        blocks = [(str(index), block) for index, block in enumerate(model.transformer.h)]
        recompute(blocks, Recompute.parse(how))
        ids = torch.arange(16).view(2, 8)
        model(input_ids=ids, labels=ids).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, gradients("none"), gradients("blocks")))


def test_a_budget_without_measured_blocks_says_what_is_missing():
    with pytest.raises(PlanError, match=r"bytes of 4 blocks, and 0 were given.*measure_blocks"):
        recompute(named(Stack()), Recompute.parse("1GiB"))


@pytest.mark.parametrize("share", soak_after([0.5, 0.3, 0.7]))
def test_a_budget_chosen_by_measured_bytes_is_kept(share):
    torch.manual_seed(0)
    model = Stack(10)
    x = torch.randn(16, 4 * LENGTH, WIDTH)
    costs = measure_blocks(named(model), lambda: model(x))
    budget = int(share * sum(cost.kept_bytes for cost in costs))
    names = recompute(named(model), Recompute("budget", budget_bytes=budget), costs=costs)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = measure_memory(lambda: model(x).sum().backward(), model, sgd, torch.device("cpu"))
    assert names and 0.6 * budget < memory.activations < 1.05 * budget


def test_a_budget_without_measured_blocks_says_what_it_needs():
    with pytest.raises(PlanError) as raised:
        recompute([("a", nn.Linear(1, 1))], Recompute.parse("1GiB"))
    assert str(raised.value) == (
        "recompute: a budget needs the measured bytes of 1 blocks, and 0 were given. "
        "Measure them with measure_blocks on a sample batch, or choose blocks or selective."
    )


class Stateful(nn.Module):
    """Changes buffers and attributes as it runs: running statistics, power iteration, counters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("table", torch.zeros(2**18 + 8))  # large
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        if self.training:
            with torch.no_grad():
                self.ema = 0.9 * self.ema + x.mean(0)
                self.table[:8] += x.mean(0)
        return x + self.linear(torch.tanh(self.norm(x))) * (1 + self.ema) + self.table[:8].clone()


class StatefulStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Stateful() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("how", ["blocks", "selective"])
def test_recomputation_updates_buffers_and_attributes_once(how):
    torch.manual_seed(0)
    plain = StatefulStack()
    again = copy.deepcopy(plain)
    recompute(named(again), Recompute.parse(how))
    inputs = [torch.randn(6, 8) for _ in range(3)]
    for model in (plain, again):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for given in inputs:
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()
    for (name, one), (_, other) in zip(
        plain.state_dict().items(), again.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(other, one, rtol=0, atol=0, msg=name)
    assert [block.calls for block in again.blocks] == [3, 3]
    assert [block.seen for block in again.blocks] == [[1, 2, 3]] * 2
