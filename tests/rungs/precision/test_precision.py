"""Fewer bits where the plan says so, full width where it says so, and refusals in words."""

from __future__ import annotations

import copy

import pytest
import torch
from functorch.compile import make_boxed_func, nop
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.errors import PlanError
from stepladder.plan import BF16, FP32, PRECISIONS, Plan, Precision
from stepladder.plan.precision import BF16_PURE, FP8, FP16, TF32
from stepladder.plan.settled.device_rules import device_multiplies
from stepladder.rungs import float32_matmul_mode
from stepladder.rungs.precision.precision import (
    autocast_context,
    compute_types,
    device_limits,
    precision,
)
from stepladder.train import climb

CPU = torch.device("cpu")
CUDA = torch.device("cuda")  # its switches can be set and read without one


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Tiny(nn.Module):
    def __init__(self, vocab: int = 32, width: int = 16, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.rand(4), persistent=False)
        self.register_buffer("average", torch.rand(4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.fixture
def tiny() -> Tiny:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Tiny()


def tokens() -> Tensor:
    return torch.randint(32, (4, 8), generator=torch.Generator().manual_seed(1))


def loss_and_gradients(model: nn.Module, chosen: Precision) -> tuple[Tensor, dict[str, Tensor]]:
    with autocast_context(chosen, CPU):
        logits = model(tokens())
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens().flatten())
    loss.backward()
    return loss, {name: p.grad for name, p in model.named_parameters()}


def record_types(module: nn.Module, seen: list[torch.dtype]) -> None:
    """Note the type in which the products inside a module really run."""

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.mm):
                seen.append(args[-1].dtype)
            return function(*args, **(kwargs or {}))

    modes: list[Spy] = []

    def before(*_) -> None:
        modes.append(Spy().__enter__())

    def after(*_) -> None:
        modes.pop().__exit__(None, None, None)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)


# A relative rounding is 2^-8 in bfloat16 and 2^-11 in float16; a handful of products in a row
# add up to a few of them.
@pytest.mark.parametrize(
    ("chosen", "tolerance"), [(BF16, 2e-2), (FP16, 3e-3), (BF16_PURE, 4e-2), (FP32, 0.0)]
)
def test_loss_and_gradients_stay_close_to_float32(
    tiny: Tiny, chosen: Precision, tolerance: float
) -> None:
    reference, expected = loss_and_gradients(copy.deepcopy(tiny), FP32)
    precision(tiny, chosen, (), CPU)
    loss, gradients = loss_and_gradients(tiny, chosen)
    assert abs(loss - reference) <= tolerance * reference
    assert chosen is FP32 or loss != reference, "it really worked in fewer bits"
    for name, gradient in gradients.items():
        error = (gradient.float() - expected[name]).norm() / expected[name].norm()
        assert error <= 2 * tolerance, name


@pytest.mark.parametrize("chosen", [FP32, TF32, FP16, BF16, BF16_PURE], ids=str)
def test_parameters_and_their_gradients_have_the_stored_type(chosen: Precision, tiny) -> None:
    names = dict(tiny.named_parameters()).keys()
    precision(tiny.double(), chosen, (), CPU)
    _, gradients = loss_and_gradients(tiny, chosen)
    stored = getattr(torch, chosen.store)
    assert {p.dtype for p in tiny.parameters()} == {stored}
    assert {g.dtype for g in gradients.values()} == {stored}
    assert dict(tiny.named_parameters()).keys() == names
    assert type(tiny) is Tiny


def test_state_follows_the_parameters_and_tables_and_counts_do_not(tiny: Tiny) -> None:
    precision(tiny, BF16_PURE, (), CPU)
    assert tiny.average.dtype == torch.bfloat16
    assert tiny.angles.dtype == torch.float32
    assert tiny.count.dtype == torch.int64


def test_a_batch_norm_runs_in_pure_bf16() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    precision(model, BF16_PURE, (), CPU)
    assert model(torch.rand(2, 1, 5, 5, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("chosen", [BF16, FP16, BF16_PURE], ids=str)
@pytest.mark.parametrize("word", ["head", "up", "blocks.1.up", "1.up"])
def test_a_kept_module_multiplies_in_float32_and_its_neighbours_do_not(
    tiny: Tiny, chosen: Precision, word: str
) -> None:
    kept, other = {
        "head": (tiny.head, tiny.blocks[1].up),
        "up": (tiny.blocks[0].up, tiny.head),
        "blocks.1.up": (tiny.blocks[1].up, tiny.blocks[0].up),
        "1.up": (tiny.blocks[1].up, tiny.blocks[0].up),
    }[word]
    in_kept: list[torch.dtype] = []
    in_other: list[torch.dtype] = []
    record_types(kept, in_kept)
    record_types(other, in_other)
    precision(tiny, chosen, (word,), CPU)
    loss_and_gradients(tiny, chosen)
    assert in_kept == [torch.float32]
    assert in_other == [getattr(torch, chosen.work)]
    assert kept.weight.dtype == kept.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(("chosen", "answer"), [(BF16, "float32"), (BF16_PURE, "bfloat16")])
def test_a_kept_module_answers_in_what_its_reader_expects(
    tiny: Tiny, chosen: Precision, answer: str
) -> None:
    precision(tiny, chosen, ("embed", "norm"), CPU)
    with autocast_context(chosen, CPU):
        assert tiny.embed(tokens()).dtype == getattr(torch, answer)
        tiny(tokens())


def test_a_kept_block_is_in_float32_throughout_even_if_its_part_is_named_too(tiny: Tiny) -> None:
    seen: list[torch.dtype] = []
    record_types(tiny.blocks[0], seen)
    precision(tiny, BF16_PURE, ("blocks.0", "norm", "blocks.0.up"), CPU)
    loss_and_gradients(tiny, BF16_PURE)
    assert seen == [torch.float32] * 2


def test_a_copy_of_a_kept_module_runs_its_own_weights(tiny: Tiny) -> None:
    precision(tiny, BF16, ("head",), CPU)
    twin = copy.deepcopy(tiny)
    nn.init.zeros_(twin.head.weight)
    assert twin(tokens()).abs().max() == 0
    assert tiny(tokens()).abs().max() > 0


def test_keeping_twice_is_keeping_once(tiny: Tiny) -> None:
    precision(tiny, BF16, ("head",), CPU)
    precision(tiny, BF16, ("head",), CPU)
    with autocast_context(BF16, CPU):
        assert tiny(tokens()).dtype == torch.float32


@pytest.mark.parametrize("chosen", [BF16, BF16_PURE], ids=str)
def test_a_kept_module_compiles_without_a_break_and_still_multiplies_in_float32(
    tiny: Tiny, chosen: Precision
) -> None:
    seen: list[torch.dtype] = []

    def note_products(graph: torch.fx.GraphModule, _):
        for node in graph.graph.nodes:
            if node.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                seen.append(node.meta["val"].dtype)
        return make_boxed_func(graph.forward)

    torch.compiler.reset()  # else the compiler's tries at this model end after a few tests
    precision(tiny, chosen, ("head", "blocks.0"), CPU)
    plain, _ = loss_and_gradients(copy.deepcopy(tiny), chosen)
    backend = aot_autograd(fw_compiler=note_products, bw_compiler=nop)
    tiny.compile(backend=backend, fullgraph=True)
    loss, _ = loss_and_gradients(tiny, chosen)
    assert seen == [torch.float32] * 2 + [torch.bfloat16] * 2 + [torch.float32]
    torch.testing.assert_close(loss, plain, rtol=1e-3, atol=0)  # compiled sums round elsewhere


def test_a_name_that_matches_nothing_names_the_nearest(tiny: Tiny) -> None:
    with pytest.raises(PlanError) as caught:
        precision(tiny, BF16, ("hed",), CPU)
    assert str(caught.value) == "keep: 'hed' is not a module of Tiny. Did you mean 'head'?"
    with pytest.raises(PlanError, match=r"'ead' is not a module"):
        precision(tiny, BF16, ("ead",), CPU)
    with pytest.raises(PlanError, match=r"Did you mean 'blocks\.0\.up'\?"):
        precision(tiny, BF16, ("blocks.0.upp",), CPU)
    with pytest.raises(PlanError, match=r"Choose one of: embed, blocks, norm, up, down, head\."):
        precision(tiny, BF16, ("zzz",), CPU)


def test_a_tied_weight_is_kept_by_both_its_owners_or_not_at_all() -> None:
    with pytest.raises(PlanError) as caught:
        precision(Tiny(tied=True), BF16_PURE, ("head",), CPU)
    assert str(caught.value) == (
        "keep: 'head' shares its weight with 'embed', which is not kept. Keep both: head, embed."
    )
    both = Tiny(tied=True)
    precision(both, BF16_PURE, ("head", "embed"), CPU)
    assert both.head.weight is both.embed.weight
    loss_and_gradients(both, BF16_PURE)
    mixed = Tiny(tied=True)
    precision(mixed, BF16, ("head",), CPU)  # stored in float32 anyway: nothing to disagree on
    loss_and_gradients(mixed, BF16)


def test_keep_is_refused_where_the_device_has_one_mode_for_all(tiny: Tiny) -> None:
    with pytest.raises(PlanError) as caught:
        precision(tiny, TF32, ("head", "embed"), CPU)
    assert str(caught.value) == (
        "keep: head, embed cannot be kept: tf32 is a mode of the whole device. "
        "Use bf16, which can keep single modules, or fp32 for all."
    )


def switches() -> tuple:
    cudnn = torch.backends.cudnn
    return (
        torch.backends.cuda.matmul.fp32_precision,
        cudnn.conv.fp32_precision,
        cudnn.rnn.fp32_precision,
    )


def test_tf32_is_on_inside_the_block_and_as_before_after_it() -> None:
    before = switches(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with autocast_context(TF32, CUDA):
        assert switches() == ("tf32", "tf32", "tf32")
        assert torch.get_float32_matmul_precision() == "high"
    after = switches(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    assert after == before


def test_a_plan_of_fp32_means_it_for_convolutions_too_and_an_error_puts_back_what_was() -> None:
    before = switches()
    assert torch.backends.cudnn.allow_tf32 is True
    with pytest.raises(ValueError), float32_matmul_mode(FP32, CUDA):
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.allow_tf32 is False
        raise ValueError
    assert switches() == before
    assert torch.backends.cudnn.allow_tf32 is True


@pytest.mark.parametrize("mode", ["high", "medium"])
def test_what_the_user_set_with_the_old_switches_comes_back(mode: str) -> None:
    torch.set_float32_matmul_precision(mode)
    try:
        with autocast_context(FP32, CUDA):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == mode
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_the_user_set_with_the_new_switches_comes_back() -> None:
    products, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = products.fp32_precision, conv.fp32_precision
    products.fp32_precision, conv.fp32_precision = "tf32", "ieee"
    try:
        with autocast_context(FP32, CUDA):
            assert torch.get_float32_matmul_precision() == "highest"
        assert (products.fp32_precision, conv.fp32_precision) == ("tf32", "ieee")
    finally:
        products.fp32_precision, conv.fp32_precision = before


def test_the_matrix_units_of_other_precisions_are_left_alone() -> None:
    before = switches()
    with float32_matmul_mode(BF16, CUDA), float32_matmul_mode(TF32, CPU):
        assert switches() == before


@pytest.mark.parametrize("chosen", [TF32, FP8], ids=str)
def test_a_device_without_the_matrix_units_refuses_and_says_what_runs(chosen: Precision) -> None:
    problem = device_multiplies(Plan(precision=chosen), device_limits(CPU))
    assert str(problem) == (
        f"precision: {chosen} needs matrix units this device (cpu) does not have. "
        "bf16 and fp16 run on it."
    )


@pytest.mark.parametrize("chosen", [FP32, BF16, BF16_PURE, FP16], ids=str)
def test_a_processor_takes_what_really_runs_on_it(chosen: Precision) -> None:
    assert device_multiplies(Plan(precision=chosen), device_limits(CPU)) is None
    model = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.GroupNorm(2, 8))
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    for part in (model, attention):
        precision(part, chosen, (), CPU)
    x = torch.rand(2, 8, 8, dtype=getattr(torch, chosen.store))
    with autocast_context(chosen, CPU):
        y = model(x)
        out, _ = attention(y, y, y, need_weights=False)
        out.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("capability", "missing"),
    [
        ((7, 0), {"tf32", "fp8"}),
        ((8, 0), {"fp8"}),
        ((8, 6), {"fp8"}),
        ((8, 9), set()),
        ((9, 0), set()),
    ],
)
def test_each_generation_multiplies_what_its_matrix_units_can(capability, missing) -> None:
    everything = {p.compute for p in PRECISIONS.values()}
    assert everything - compute_types(capability) == missing


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_buffer_of_a_type_that_no_parameter_has_keeps_it(dtype):
    module = nn.Linear(2, 2)
    module.register_buffer("own", torch.rand(3, dtype=dtype))
    precision(module, FP32, (), CPU)
    assert module.own.dtype == dtype


def test_a_buffer_of_the_parameters_type_is_cast_with_them():
    module = nn.BatchNorm1d(2).bfloat16()
    precision(module, FP32, (), CPU)
    assert module.running_mean.dtype == module.weight.dtype == torch.float32


def test_bfloat16_settles_on_kernels_before_the_first_step(recwarn):
    precision(nn.Linear(2, 2), BF16, (), CPU)
    before = torch.backends.mkldnn.enabled
    nn.Linear(64, 64).bfloat16()(torch.ones(64, 64, dtype=torch.bfloat16))
    assert torch.backends.mkldnn.enabled == before and not recwarn.list


def test_an_rms_norm_of_a_float64_module_keeps_its_own_eps():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.Linear(4, 3)).double()
    nn.init.normal_(module[0].weight, std=1e-6)  # rows far below float32's eps
    nn.init.zeros_(module[0].bias)
    inputs, targets = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2] * 2)
    expected = nn.functional.cross_entropy(module(inputs), targets).item()
    run = climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan="fp32")
    assert run.step((inputs, targets)).loss == pytest.approx(expected, rel=1e-5)
