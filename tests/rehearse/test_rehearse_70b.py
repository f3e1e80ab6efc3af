"""A 70B on 512 ranks is rehearsed in a minute of one processor and under 4 GiB."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_70b_on_512_ranks_takes_a_minute_and_little_memory(tmp_path):
    out = tmp_path / "rehearsed.json"
    script = ROOT / "benchmarks" / "memory" / "rehearse_70b.py"
    words = [sys.executable, str(script), "--out", str(out)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    found = json.loads(out.read_text())
    assert found["processor_seconds"] < 75
    assert found["resident_gib"] < 4
    assert 5 < found["allocated_gib"] < 60
