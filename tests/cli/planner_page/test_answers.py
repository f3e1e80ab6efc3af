"""The page's answers are the command's: the same planner, the same numbers, the same mistakes."""

import json
import shlex
import subprocess
import sys

import pytest

from stepladder.cli.main import main
from stepladder.cli.planner_page.answers import answer, choices
from stepladder.plan import Plan

FORMS = {
    "as it begins": {},
    "one device": {"model": "gpt2", "per_node": "1", "sequence": "1024", "data": "ddp"},
    "too little memory": {"model": "llama2-70b", "sequence": "4096", "data": "ddp"},
    "long sequences": {"sequence": "65536", "data": "ddp", "accumulate": "8"},
    "every axis": {
        "nodes": "8", "tensor": "2", "pipeline": "2", "context": "2", "copies": "2", "batch": "64",
        "accumulate": "4", "schedule": "interleaved:2", "links": "400 Gb/s per GPU",
    },
    "images": {"model": "resnet50", "batch": "256", "accumulate": "1", "recompute": "none"},
    "a mixture": {"model": "mixtral-8x7b", "nodes": "4", "sequence": "4096", "accumulate": "2"},
    "a price and a power cap": {"price": "2.5", "links": "500 W"},
    "numbers of one's own": {"model": "own", "layers": "16", "hidden": "2048", "tokens": "3e11"},
}  # fmt: skip


@pytest.mark.parametrize("given", FORMS.values(), ids=FORMS)
def test_the_forecast_is_what_the_shown_command_prints(given, capsys):
    answered = json.loads(json.dumps(answer("forecast", given)))
    words = shlex.split(answered["commands"]["plan"])
    code = main([*words[1:], "--json"])
    assert answered["forecast"] == json.loads(capsys.readouterr().out)
    assert code == (0 if answered["forecast"]["fits"] else 1)


MISTAKES = {
    "layout.tensor: 'x' is not a whole number": {"tensor": "x"},
    "layout.tensor: 3 ways cannot cut 32 attention heads": {"tensor": "3"},
    "tokens: 'many' is not a number to train on": {"tokens": "many"},
    "price: 'cheap' is not a number of dollars": {"price": "cheap"},
    "price: -2.0 is not a number of dollars": {"price": "-2"},
    "cluster.power: '900 W' is no power cap for H100-80GB": {"links": "900 W"},
    "cluster: '0 nodes x 8 H100-80GB' counts 0": {"nodes": "0"},
    "device: ": {"device": "H1000"},
    "sequence: '' is not a whole number": {"sequence": ""},
    "model.heads: 7 heads do not divide hidden=4096": {"model": "own", "heads": "7"},
    "model: 'config.json' is not a known model": {"model": "config.json"},
    "plan: 'bf17' is not a word of a plan": {"precision": "bf17"},
    "batch.sequences: 63 does not divide": {"batch": "63"},
    "volume: is not a field of the page": {"volume": "11"},
}


@pytest.mark.parametrize("given", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_with_the_planners_own_lines(given):
    (expected,) = (line for line, fields in MISTAKES.items() if fields is given)
    problems = answer("forecast", given)["problems"]
    assert any(expected in line for line in problems), problems
    assert all("\n" not in line and line.endswith((".", "?")) for line in problems)


def test_the_fastest_plan_is_the_searchs(capsys):
    given = {"model": "gpt2", "per_node": "1", "sequence": "1024", "batch": "8"}
    found = answer("fastest", given)["fields"]
    shown = answer("forecast", {**given, **found})["forecast"]["plan"]
    assert main(["plan", "gpt2", "--on", "1 H100-80GB", "--batch", "8", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["ranked"][0]["plan"]
    assert Plan.parse(shown).settle(1) == Plan.parse(best).settle(1)


def test_every_choice_of_a_field_is_one_the_planner_reads():
    offered = choices({})
    single = ("family", "precision", "data", "recompute", "schedule", "offload", "compile")
    for name in (*single, "kernels"):
        for value in offered[name]:
            given = {name: value, "model": "own", "pipeline": "2", "accumulate": "4"}
            problems = answer("forecast", given).get("problems", [])
            assert not any("is not a" in line for line in problems), (name, value, problems)
    for model in offered["model"]:
        asked = answer("forecast", {"model": model, "recompute": "none"})
        assert "forecast" in asked, asked


def test_the_answers_need_no_torch_and_nothing_else_installed():
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'starlette', 'uvicorn', 'rich'): sys.modules[name] = None\n"
        "from stepladder.cli.planner_page.answers import answer\n"
        "print(answer('forecast', {})['forecast']['fits'])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
