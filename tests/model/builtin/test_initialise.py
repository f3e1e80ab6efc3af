"""First values, the same on every layout."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from stepladder.errors import ModelError
from stepladder.model import build
from stepladder.model.builtin.initialise import initialise
from tests.ranks import run

torch.set_num_threads(1)
SMALL = "llama:layers=2,hidden=32,heads=4,kv_heads=2,ffn=48,vocab=51,sequence=16"


def test_a_stage_draws_what_the_whole_model_draws():
    whole, stage = build("gpt-tiny", seed=3), build("gpt-tiny", device="meta")
    stage.embedding = stage.position = stage.blocks[0] = stage.blocks[1] = None
    stage.to_empty(device="cpu")
    initialise(stage, 3)
    values = whole.state_dict()
    for name, value in stage.state_dict().items():
        assert torch.equal(value, values[name]), name


def test_a_narrow_copy_holds_the_same_draw_rounded():
    wide, narrow = build("gpt-tiny"), build("gpt-tiny").bfloat16()
    initialise(narrow, 0)
    for one, other in zip(wide.parameters(), narrow.parameters()):
        assert torch.equal(one.bfloat16(), other)


@pytest.mark.parametrize("wrap", [torch.compile, checkpoint_wrapper])
def test_a_wrapped_block_draws_under_its_own_name(wrap):
    plain, wrapped = build("gpt-tiny", seed=5), build("gpt-tiny")
    wrapped.blocks[1] = wrap(wrapped.blocks[1])
    initialise(wrapped, 5)
    assert torch.equal(wrapped.blocks[1].mlp.up.weight, plain.blocks[1].mlp.up.weight)


def test_residual_outputs_start_smaller_by_the_root_of_their_number():
    model = build("gpt-small")
    for block in model.blocks:
        assert block.mlp.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
        for linear in (block.mlp.down, block.attention.out):
            assert linear.weight.std().item() == pytest.approx(0.02 / 12**0.5, rel=0.02)


def test_norms_are_one_and_biases_zero():
    for name in ("gpt-tiny", "resnet-tiny"):
        for path, part in build(name).named_modules():
            if "Norm" in type(part).__name__:
                assert (part.weight == 1).all(), path
            if getattr(part, "bias", None) is not None:
                assert (part.bias == 0).all(), path


def test_convolutions_keep_the_size_of_what_flows():
    conv = build("resnet18").blocks[7].layers[1][0]
    assert conv.weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


def test_parameters_of_one_shape_differ():
    block = build("llama-tiny").blocks[0]
    assert not torch.equal(block.mlp.gate.weight, block.mlp.up.weight)


def test_buffers_are_built_again():
    model = build("llama-tiny")
    fresh = model.blocks[0].attention.rotary.cos.clone()
    model.blocks[0].attention.rotary.cos.zero_()
    initialise(model)
    assert torch.equal(model.blocks[0].attention.rotary.cos, fresh)
    norm = nn.BatchNorm1d(4)
    norm.running_mean.fill_(7)
    initialise(norm)
    assert (norm.running_mean == 0).all()


def test_a_foreign_tie_survives():
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=32)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(config)
    model.to_empty(device="cpu")
    initialise(model)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.std().item() == pytest.approx(0.02, rel=0.1)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(3))


def test_a_parameter_without_a_rule_is_refused():
    with pytest.raises(ModelError) as caught:
        initialise(nn.Sequential(Odd()))
    assert str(caught.value) == (
        "0.scale: a Odd has no rule for a first value of shape (3,). "
        "Give that class a method `initial(name)` that returns its standard deviation."
    )


def test_a_class_may_state_its_own_rule():
    class Stated(Odd):
        def initial(self, name):
            return {"scale": 2.0}[name]

    stated = nn.Sequential(Stated())
    initialise(stated)
    assert (stated[0].scale != 0).all()


def test_a_buffer_without_a_rule_is_refused():
    odd = nn.Module()
    odd.register_buffer("table", torch.zeros(2))
    with pytest.raises(ModelError) as caught:
        initialise(odd)
    assert str(caught.value) == (
        "table: a Module has no rule to rebuild its buffers. "
        "Give that class a method `reset_buffers()`."
    )


def keep(value: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    return value.chunk(2, dim)[index]


def slice_of(value: torch.Tensor, cut: str | None, place: tuple[int, int]) -> torch.Tensor:
    """Cut first, then sharded by rows: what this place must hold."""
    shard, tensor = place
    if cut is not None:
        value = keep(value, 0 if cut == "column" else 1, tensor)
    return keep(value, 0, shard)


def lay_out(rank: int) -> None:
    """Be one rank of a world of two by two whose others do not exist: nobody can be asked."""
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    whole, model = build(SMALL, seed=7), build(SMALL, device="meta")
    styles = {"column": ColwiseParallel, "row": RowwiseParallel}
    plan = {name: styles[cut]() for name, cut in model.anatomy.cuts.items()}
    for _, block in model.anatomy.blocks_of(model):
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    model.to_empty(device="cpu")
    initialise(model, 7)
    for (name, value), full in zip(model.named_parameters(), whole.parameters()):
        cut = model.anatomy.cuts.get(name.removesuffix(".weight").split(".", 2)[-1])
        assert isinstance(value, DTensor)
        assert torch.equal(value.to_local(), slice_of(full, cut, divmod(rank, 2))), name


def test_a_cut_and_sharded_rank_holds_its_slice_of_the_draw_without_asking():
    run(lay_out, 1, 3, init=False)  # in another process: torch remembers a mesh's rank
