"""Right solutions of other structures than ours pass, alone or behind an adapter."""

from pathlib import Path

import pytest

from stepladder.labs import judge, solution
from stepladder.labs.adapter import adapter
from stepladder.labs.catalogue.courses import find_lab
from tests.soak import soak_after

FOLDER = Path(__file__).parent / "restructured"
OTHERS = [
    ("views", "views_as_class"),
    ("ring", "ring_recursive"),
    ("views", "views_by_torch"),
    ("formats", "formats_as_dataclass"),
    ("loss-scale", "loss_scale_functional"),
    ("tensor-parallel", "tensor_parallel_hooks"),
    ("occupancy", "occupancy_by_placing"),
    ("data-order", "data_order_as_class"),
]


def wrong(name, path):
    return [
        finding for finding in judge(find_lab(name), path, limit_seconds=120) if not finding.passed
    ]


@pytest.mark.parametrize(("name", "file"), soak_after(OTHERS, gate=2))
def test_a_right_solution_of_another_structure_passes(name, file):
    assert wrong(name, FOLDER / f"{file}.py") == []


def test_an_adapter_makes_a_solution_in_another_file_pass(tmp_path):
    lab = find_lab("views")
    (tmp_path / "views.py").write_text(solution(lab.lesson.read_text()))
    path = tmp_path / "views_adapter.py"
    path.write_text(adapter(lab, path.name))
    assert wrong("views", path) == []
    path.write_text(path.read_text().replace("windows = mine.windows", ""))
    (missing, *others) = wrong("views", path)
    assert missing.message == (
        "Your file has no 'windows'. Write it, or give what does its work that name: "
        "'stepladder lab start views --adapter' writes a file for that."
    )
    assert all("windows" in other.message for other in others)


def test_lines_of_every_file_of_the_learners_are_shown(tmp_path):
    (tmp_path / "deep.py").write_text("def fall():\n    raise KeyError('deep')\n")
    path = tmp_path / "mine.py"
    path.write_text("from deep import fall\n\ndef position(*given):\n    return fall()\n")
    first = wrong("views", path)[0]
    assert first.message.splitlines() == [
        "line 4: return fall()",
        "deep.py line 2: raise KeyError('deep')",
        "KeyError: 'deep'",
    ]
