"""A process knows its place from the launcher's variables: all of them, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.errors import WorldError
from stepladder.world import Place
from stepladder.world.launcher_environment import REQUIRED

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_no_variables_is_a_world_of_one():
    assert Place.from_environment({}) == Place(0, 1, 0, 1, launched=False)


def test_torchruns_variables_are_the_place():
    assert Place.from_environment(TORCHRUN) == Place(5, 8, 1, 4, launched=True)


def test_one_node_is_assumed_where_its_size_is_not_said():
    variables = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}
    assert Place.from_environment(variables).local_ranks == 8


@given(st.sets(st.sampled_from(REQUIRED), min_size=1, max_size=len(REQUIRED) - 1))
def test_half_a_set_names_what_is_missing_and_what_is_there(given_names):
    with pytest.raises(WorldError) as caught:
        Place.from_environment({name: TORCHRUN[name] for name in given_names})
    missing = ", ".join(name for name in REQUIRED if name not in given_names)
    there = ", ".join(name for name in REQUIRED if name in given_names)
    assert str(caught.value) == (
        f"environment: {missing} missing while {there} are set. "
        "Start with torchrun, which sets all of them, or unset them to run alone."
    )


@pytest.mark.parametrize(
    "name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"]
)
@pytest.mark.parametrize("value", ["", "x", "-1", "1.0", "²", "١", "9" * 5000])
def test_a_variable_that_is_not_a_number_is_named(name, value):
    with pytest.raises(WorldError) as caught:
        Place.from_environment({**TORCHRUN, name: value})
    assert str(caught.value) == (
        f"{name}: '{value}' is not a number. Start with torchrun, which sets it."
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK: 8 is not below WORLD_SIZE=8."),
        ({"WORLD_SIZE": "0"}, "RANK: 5 is not below WORLD_SIZE=0."),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK: 4 is not below LOCAL_WORLD_SIZE=4."),
    ],
)
def test_a_rank_beyond_the_world_is_refused(changes, message):
    with pytest.raises(WorldError) as caught:
        Place.from_environment({**TORCHRUN, **changes})
    remedy = "Ranks count from 0. Start with torchrun, which sets both."
    assert str(caught.value) == f"{message} {remedy}"
