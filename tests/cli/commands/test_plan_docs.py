"""The planner's page answers the classic questions; tests/docs runs its commands."""

import re
from pathlib import Path

import pytest

from stepladder.hardware import Cluster
from stepladder.planner import search
from stepladder.workload import find_facts
from tests.soak import soak_after

PAGE = (Path(__file__).parents[3] / "docs" / "planner.md").read_text()
BLOCKS = re.findall(r"```console\n\$ stepladder plan (.*?)\n(.*?)```", PAGE, re.S)
CHART = re.findall(r"\| `stepladder plan (\S+) --on \"(.*?)\" --batch (\d+)` \| `(.*?)` \|", PAGE)


def test_the_page_answers_the_classic_questions() -> None:
    assert len(BLOCKS) >= 14 and len(CHART) == 8


@pytest.mark.parametrize(("model", "cluster", "batch", "plan"), soak_after(CHART, gate=3))
def test_the_chart_names_the_best_plan(model: str, cluster: str, batch: str, plan: str) -> None:
    found = search(find_facts(model), Cluster.parse(cluster), batch=int(batch))
    assert found.forecasts[0].plan == plan
