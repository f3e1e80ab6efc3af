"""Modules cut over ranks compute what one device does, or are refused in one line."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stepladder.data import Batch
from stepladder.errors import ModelError, PlanError
from stepladder.model import describe
from stepladder.train import climb
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import ragged

from . import cut_models as models

SGD, ADAMW = "sgd lr=0.1", "adamw lr=1e-3 clip=0.1"
OWN = ("hf_gpt2",)  # judged by the loss inside the model
EVERY = (
    "gpt", "odd_gpt", "mlp", "hf_gpt2", "foreign", "placed",
    "llama", "vit", "hf_llama", "encoder",
)  # fmt: skip
GATE = 6  # of them, and the llama in copies and slices
MICRO = 6  # of 12 rows: two passes a batch


def batches(name: str, steps: int, own: bool = False):
    draw = torch.Generator().manual_seed(5)
    shapes = {"mlp": (12, 16), "vit": (12, 1, 8, 8)}
    if name in shapes:
        classes = torch.randint(0, 10, (steps, 12), generator=draw)
        return [(torch.randn(shapes[name], generator=draw), each) for each in classes]
    if own:
        return [{"input_ids": t, "labels": labels} for t, labels in ragged(steps)]
    return ragged(steps)


def start(name: str, plan: str, optimizer: str = SGD, own: bool = False):
    return climb(
        getattr(models, name)(),
        loss=None if own else "cross_entropy",
        optimizer=optimizer,
        plan=f"{plan} micro={MICRO}",
        device="cpu",
    )


def learn(name: str, plan: str, optimizer: str = SGD, own: bool = False, steps: int = 2):
    """Losses, norms, and every parameter whole."""
    taken = start(name, plan, optimizer, own)
    ways, mine = taken.world.layout.data_ranks, taken.world.data_index
    reports = []
    for batch in batches(name, steps, own):
        part = Batch.of(batch, position=0, size=12)
        rows = part.num_rows // ways
        reports.append(taken.step(part.rows(slice(mine * rows, (mine + 1) * rows))))
    parameters = {n: whole(p) for n, p in taken.module.named_parameters()}
    return [r.loss for r in reports], [r.grad_norm for r in reports], parameters


def whole(parameter: nn.Parameter) -> torch.Tensor:
    parameter = parameter.detach()
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def learn_all(names, plan: str, optimizer: str, own: tuple[str, ...] = ()):
    return {name: learn(name, plan, optimizer, name in own) for name in names}


@cache
def learnt(names):
    return run(learn_all, 2, names, "fp32 tensor=2", SGD, OWN, init=False, timeout_seconds=300)


def assert_same(found, expected) -> None:
    losses, norms, parameters = expected
    assert found[0] == pytest.approx(losses, rel=1e-5)
    assert found[1] == pytest.approx(norms, rel=1e-5)
    assert list(found[2]) == list(parameters)
    for name, parameter in parameters.items():
        torch.testing.assert_close(found[2][name], parameter, rtol=1e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("name", soak_after(EVERY, gate=GATE))
def test_two_ranks_learn_what_one_device_does(name):
    expected = learn(name, "fp32", own=name in OWN)
    for rank in learnt(EVERY[:GATE] if name in EVERY[:GATE] else EVERY[GATE:]):
        assert_same(rank[name], expected)


@pytest.mark.parametrize("plan", ["fp32 tensor=2 recompute=blocks", "fp32 tensor=2"])
def test_adam_and_clipping_see_the_true_norm(plan):
    for name, found in run(learn_all, 2, ("hf_gpt2",), plan, ADAMW, init=False)[1].items():
        expected = learn(name, "fp32", ADAMW)
        assert found[0] == pytest.approx(expected[0], rel=1e-5)
        assert found[1] == pytest.approx(expected[1], rel=1e-5)


def test_slices_of_cut_parameters_learn_what_one_device_does():
    names = ("llama",)
    ranks = run(
        learn_all, 4, names, "fp32 zero3 shard=2 tensor=2", SGD, init=False, timeout_seconds=300
    )
    for name in names:
        assert_same(ranks[3][name], learn(name, "fp32"))


@pytest.mark.parametrize(("precision", "rough"), [("bf16", 2e-3), ("fp16", 2e-4)])
def test_fewer_bits_differ_by_their_rounding(precision, rough):
    found = run(learn, 2, "gpt", f"{precision} tensor=2", init=False)[0]
    expected = learn("gpt", precision)
    assert found[0] == pytest.approx(expected[0], rel=rough)
    assert found[1] == pytest.approx(expected[1], rel=10 * rough)


def held(name: str):
    """Numbers that this rank stores, the length one block sees, and whether all are distributed."""
    taken, seen = start(name, "fp32 tensor=2"), []
    block = dict(taken.module.named_modules())[taken.climbed.anatomy.blocks[1]]
    block.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    taken.step(batches(name, 1)[0])
    parameters = list(taken.module.parameters())
    local = sum(p.to_local().numel() for p in parameters)
    return local, seen[0], all(isinstance(p, DTensor) for p in parameters)


@pytest.mark.parametrize(
    ("name", "length"), soak_after([("gpt", 8), ("foreign", 16), ("hf_llama", 8)], gate=2)
)
def test_a_rank_holds_what_the_planner_forecasts(name, length):
    facts = describe(getattr(models, name)(), sequence=16)
    cut = sum(
        part.count * (part.whole_parameters + (part.parameters - part.whole_parameters) / 2)
        for part in facts.parts
    )
    expected = cut - facts.tied_parameters / 2
    assert run(held, 2, name, init=False) == [(expected, length, True)] * 2


def evaluate(name: str, plan: str):
    taken = start(name, plan)
    batch = Batch.of(batches(name, 1)[0], position=0, size=12)
    loss, count = taken.climbed.forward_backward.evaluate(batch)
    return loss.item(), count


def test_evaluation_sees_all_logits():
    expected = evaluate("gpt", "fp32")
    assert run(evaluate, 2, "gpt", "fp32 tensor=2", init=False) == [pytest.approx(expected)] * 2


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("uncuttable", r"Sequential: its blocks \(Sequential\)"),
        ("hf_phi3", r"Phi3ForCausalLM: its blocks \(Phi3DecoderLayer\)"),
    ],
)
def test_what_shows_no_pair_of_linears_is_refused_by_name(name, whose):
    with pytest.raises(ModelError, match=f"{whose} show no pair of linears that can be cut"):
        run(start, 2, name, "fp32 tensor=2", init=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three_heads", r"2 ways cannot cut the 3 heads of 'blocks.0.attention.query' evenly"),
        ("three_foreign_heads", r"2 ways cannot cut the 3 num_heads of 'layers.0.attention'"),
        ("odd_width", r"2 ways cannot cut the 65 numbers of 'blocks.0.up' evenly. Use 1, 5 or 13"),
        ("one_class", r"2 ways leave a rank without any of the 1 classes of 'head'"),
    ],
)
def test_a_cut_that_does_not_divide_is_refused_by_name(name, message):
    with pytest.raises(PlanError, match=message):
        run(start, 2, name, "fp32 tensor=2", init=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("normed_table", "tokens: max_norm=1 shortens rows of its weight in forward"),
        ("running_table", "tokens: is an Running that does more than look up rows"),
        ("half_tied", r"out.weight: is one with 'layers.0.attention.q.weight', and a tensor"),
    ],
)
def test_a_parameter_that_cannot_be_cut_alone_is_refused_by_name(name, message):
    with pytest.raises(ModelError, match=message):
        run(start, 2, name, "fp32 tensor=2", init=False)
