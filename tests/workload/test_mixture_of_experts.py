"""What experts add to a block is what tracing a real one shows."""

from dataclasses import replace

import pytest
import torch

from stepladder.model import describe
from stepladder.workload import facts_of_shape, shape_of_config

WIDTHS = ((4, 4), (2, 4), (2, 2))  # work and stream: fp32, autocast, stored in bf16
LENGTH = 32


@pytest.fixture(scope="module")
def blocks():
    """Traced and counted, of tokens that go to one expert and to three."""
    transformers = pytest.importorskip("transformers", reason="the module is theirs")
    found = {}
    for active in (1, 3):
        config = transformers.MixtralConfig(
            num_hidden_layers=1, hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=128, intermediate_size=96, num_local_experts=8, num_experts_per_tok=active,
        )  # fmt: skip
        with torch.device("meta"):
            module = transformers.MixtralForCausalLM(config)
        counted = facts_of_shape(shape_of_config(config.to_dict()), LENGTH)
        found[active] = describe(module, sequence=LENGTH), counted
    return found


def test_matmuls_are_those_that_run(blocks):
    for traced, counted in blocks.values():
        one, other = traced.parts[1], counted.parts[1]
        counts = [replace(matrix, narrows=False) for matrix in other.matmuls]  # as ours alone does
        assert sorted(map(repr, one.matmuls)) == sorted(map(repr, counts))
        assert (one.parameters, one.whole_parameters) == (other.parameters, other.whole_parameters)
        assert (one.whole, one.tensors) == (other.whole, other.tensors) == (True, 9)
        assert traced.active_parameters == counted.active_parameters < counted.parameters
        assert traced.flops_per_token == pytest.approx(counted.flops_per_token, rel=0.01)


@pytest.mark.parametrize("way", ["eager", "compiled", "selective"])
def test_each_expert_that_a_token_goes_to_keeps_as_much_as_it_really_does(blocks, way):
    def further(which, widths):
        one, three = (getattr(blocks[n][which].parts[1], way).num_bytes(*widths) for n in (1, 3))
        return (three - one) / 2

    for widths in WIDTHS:
        assert further(1, widths) == pytest.approx(further(0, widths), rel=0.001), widths
