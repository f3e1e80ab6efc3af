"""The page on communication: its figures are what the benchmark left."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_figure_is_what_the_benchmark_left():
    path = ROOT / "benchmarks" / "collectives.py"
    spec = importlib.util.spec_from_file_location("collectives_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text()
    if not module.RESULT.exists():
        assert module.words(page) == page, "figures that no result stands behind"
        return
    result = json.loads(module.RESULT.read_text())
    assert module.with_figures(page, result) == page, "run: python benchmarks/collectives.py --page"
    assert result["date"] in page and result["machine"] in page
