"""How far the planner is from published runs: `python benchmarks/planner_published.py --rows FILE`.

The program is `benchmarks/planner/published_runs.py`, which says what its tables are.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "planner"

if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1] / "src")]
    runpy.run_path(str(FOLDER / "published_runs.py"), run_name="__main__")
