"""The README: its figures are the results', and its code runs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_figure_is_what_the_benchmarks_left():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.filled(README) == README, "run: python benchmarks/readme.py"


def test_the_two_commands_open_it():
    first, second = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)[:2]
    assert (first, second) == ("train", "test")
    assert README.index("make train") < 100


def test_the_python_in_it_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "readme" / "latest").read_text() == "step-000020\n"


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target
