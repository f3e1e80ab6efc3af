"""Well-known models by name, with the parameter counts their authors state."""

import pytest

from stepladder.errors import PlanError
from stepladder.workload import facts_of_shape, find_shape
from stepladder.workload.presets import PRESETS
from stepladder.workload.shape import parse_shape


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2", 124.5e6),  # 124M, its vocabulary rounded up to 50304
        ("gpt2-medium", 354.9e6),
        ("gpt2-large", 774.1e6),
        ("gpt2-xl", 1557.7e6),
        ("gpt3-175b", 174.6e9),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("olmoe-1b-7b", 6_919_161_856),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)
def test_a_preset_has_the_parameters_of_its_model(name, parameters):
    tolerance = 0 if isinstance(parameters, int) else 1e-3
    assert PRESETS[name].parameters == pytest.approx(parameters, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.9e9),
        ("mixtral-8x22b", 39.1e9),
        ("olmoe-1b-7b", 1.28e9),
        ("qwen3-30b-a3b", 3.35e9),  # 3.3 on its card
        ("qwen3-235b-a22b", 22.2e9),
    ],
)
def test_a_mixture_has_the_active_parameters_of_its_card(name, active):
    shape = PRESETS[name]
    assert shape.active_parameters == pytest.approx(active, rel=3e-3)
    assert facts_of_shape(shape, 64).active_parameters == shape.active_parameters


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_legal_shape_and_reads_back(name):
    assert find_shape(name) == parse_shape(str(PRESETS[name])) == PRESETS[name]


def test_a_shapes_own_text_is_found_too():
    assert find_shape("gpt:layers=3").layers == 3


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(PlanError) as caught:
        find_shape("llama3-8")
    assert str(caught.value) == "model: 'llama3-8' is not a known model. Did you mean 'llama3-8b'?"
