"""The README: its figures are the results'; its code and links are tested in tests/docs."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_figure_is_what_the_benchmarks_left():
    spec = importlib.util.spec_from_file_location(
        "readme_figures", ROOT / "benchmarks" / "readme_figures.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.filled(README) == README, "run: python benchmarks/readme_figures.py"


def test_the_two_commands_open_it():
    first, second = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)[:2]
    assert (first, second) == ("train", "test")
    assert README.index("make train") < 100
