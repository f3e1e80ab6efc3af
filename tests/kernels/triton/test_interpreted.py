"""The kernels' tests once more, this time through the Triton programs themselves.

In a process of its own: Triton chooses its interpreter while a kernel is decorated, and in this
process another test may have imported it already.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import soak_after

pytest.importorskip("triton")
HERE = Path(__file__).parents[1]
# What is compiled around an operator does not depend on what runs inside it.
SMALL, EVERY = "not compiles and not large_vocabulary", "not compiles"
FEWER_HEADS = "not (gradients_are_those_of_attention and shape1)"  # in plain torch in the gate, too
FILES = (
    # In one process, which takes seconds to start.
    (
        "test_adamw test_class_slices test_cross_entropy attention/test_exact_attention",
        f"{SMALL} and {FEWER_HEADS}",
    ),
    ("attention/test_exact_attention", EVERY),
    ("test_cross_entropy", "large_vocabulary"),
    ("test_linear_cross_entropy", EVERY),
    ("triton/test_triton_float8", EVERY),
    ("triton/test_triton_matmul", EVERY),
    ("test_max_pool", EVERY),
    ("test_compact_adamw", EVERY),
)


@pytest.mark.parametrize(("names", "chosen"), soak_after(FILES))
@pytest.mark.timeout(600)  # half a minute alone, several on a crowded machine
def test_the_triton_programs_pass_the_same_tests(names, chosen):
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this process interprets Triton already")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-k", chosen]
    done = subprocess.run(
        [*command, *(str(HERE / f"{name}.py") for name in names.split())],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
