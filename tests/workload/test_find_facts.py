import pytest

from stepladder.errors import PlanError
from stepladder.workload import find_facts
from stepladder.workload.find_facts import facts_of_config
from stepladder.workload.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_facts(name: str) -> None:
    facts = find_facts(name)
    assert facts.num_blocks == PRESETS[name].layers == len(facts.blocks)


def test_an_unknown_model_offers_the_nearest_name() -> None:
    with pytest.raises(
        PlanError, match="'llama3-8' is not a known model. Did you mean 'llama3-8b'"
    ):
        find_facts("llama3-8")


def test_a_sequence_of_nothing_is_refused() -> None:
    with pytest.raises(PlanError, match="0 is not a length"):
        find_facts("gpt2", 0)


def test_a_config_in_hand_needs_no_file() -> None:
    table = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50304}
    facts = facts_of_config(table, 512)
    assert facts.parameters == find_facts("gpt2").parameters
    assert (facts.tokens, facts.name) == (512, "gpt2")
