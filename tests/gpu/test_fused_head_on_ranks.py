"""The fused head's Triton programs on ranks that share one GPU over gloo: gathered parameters, and
slices of the classes. The same arithmetic on a CPU: tests/rungs/test_fused_head_on_ranks.py."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).parents[2]
SCRIPT = "benchmarks/parity/parity_ranks_gpu.py"


@pytest.mark.timeout(600)
def test_ranks_of_one_gpu_compute_what_a_cpu_does_without_kernels(fresh_python):
    """In new interpreters: a process that is forked after this one has used CUDA cannot use it."""
    command = [sys.executable, SCRIPT, "--kernels", "--steps", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count('"same": true') >= 9
