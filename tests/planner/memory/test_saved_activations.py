"""What forward keeps, counted on the real modules: saved tensors, to the byte."""

from dataclasses import replace

import pytest

from stepladder.plan import Plan, SettledPlan
from stepladder.planner.memory.byte_sizes import sizes_of
from stepladder.planner.memory.saved_activations import input_bytes, saved_bytes
from stepladder.workload import Shape, facts_of_shape

torch = pytest.importorskip("torch")


def autograd_saved_bytes(shape: Shape, samples: int, precision: str) -> int:
    """Of one block's forward, parameters and their casts left out."""
    from stepladder.model.builtin.gpt import GPT

    torch.set_num_threads(1)
    module = GPT(shape)
    module = module.bfloat16() if precision == "bf16-pure" else module
    tokens = torch.zeros(samples, shape.sequence, dtype=torch.long)
    weights = {tuple(p.shape) for p in module.blocks[0].parameters()}
    weights |= {shape[::-1] for shape in weights}
    saved: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    stream = module.enter(tokens, None)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with autocast, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module.blocks[0](stream)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure", "bf16"])
def test_a_gpt_block_keeps_what_is_forecast(precision: str) -> None:
    shape = Shape("gpt", 1, 128, 4, 4, 512, 64, 96, True)
    facts = facts_of_shape(shape)
    sizes = sizes_of(facts, SettledPlan(Plan.parse(f"{precision} micro=2").settle(1)))
    forecast = saved_bytes(facts.parts[1], sizes)
    assert autograd_saved_bytes(shape, 2, precision) == pytest.approx(forecast, rel=0.003)


def test_ranks_that_cut_attention_alone_keep_all_of_a_block_with_experts() -> None:
    facts = facts_of_shape(Shape("llama", 1, 128, 4, 4, 512, 64, 96, experts=8, active=2))
    block = facts.parts[1]
    for words in ("", "recompute=selective"):
        plan = Plan.parse(f"bf16 zero3 micro=2 {words}")
        one, four = (
            sizes_of(
                facts, SettledPlan(replace(plan, layout=replace(plan.layout, tensor=n)).settle(n))
            )
            for n in (1, 4)
        )
        for selective in (False, True):
            whole, cut = (saved_bytes(block, sizes, selective=selective) for sizes in (one, four))
            assert whole == cut > 0
        assert input_bytes(block, one) == input_bytes(block, four)
