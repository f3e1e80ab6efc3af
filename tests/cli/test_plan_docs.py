"""Every command on the planner's page still gives what the page shows."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from stepladder.cli import plan as command
from stepladder.errors import PlanError
from stepladder.hardware import Cluster
from stepladder.planner import search
from stepladder.workload import find_facts

PAGE = (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
BLOCKS = re.findall(r"```console\n\$ stepladder plan (.*?)\n(.*?)```", PAGE, re.S)
CHART = re.findall(r"\| `stepladder plan (\S+) --on \"(.*?)\" --batch (\d+)` \| `(.*?)` \|", PAGE)


def show(words: str, capsys) -> list[str]:
    parser = argparse.ArgumentParser()
    command.configure(parser)
    try:
        command.run(parser.parse_args(shlex.split(words)))
    except PlanError as problem:
        return [str(problem)]
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_page_answers_the_classic_questions() -> None:
    assert len(BLOCKS) >= 14 and len(CHART) == 8


@pytest.mark.parametrize(("words", "shown"), BLOCKS, ids=[words[:60] for words, _ in BLOCKS])
def test_a_command_gives_what_the_page_shows(words: str, shown: str, capsys) -> None:
    lines = iter(show(words, capsys))
    for expected in shown.splitlines():
        assert expected in lines, f"not there, or not in this order: {expected}"


@pytest.mark.parametrize(("model", "cluster", "batch", "plan"), CHART)
def test_the_chart_names_the_best_plan(model: str, cluster: str, batch: str, plan: str) -> None:
    found = search(find_facts(model), Cluster.parse(cluster), batch=int(batch))
    assert found.forecasts[0].plan == plan
