"""The ground floors and `--help` start in a blink, without torch."""

import subprocess
import sys
import time

import pytest

GROUND = ["errors", "hardware", "workload", "plan", "record", "planner"]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize("package", GROUND)
def test_a_ground_floor_package_does_not_import_torch(package):
    code = (
        f"import sys, stepladder.{package}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run(code).split() == ["False", "False"]


def test_help_answers_in_under_half_a_second():
    def once() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "stepladder.cli.main", "--help"], check=True, capture_output=True
        )
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.5  # the best of five: this asks about the code


@pytest.mark.parametrize("command", ["train", "bench", "verify", "doctor"])
def test_a_commands_help_does_not_import_torch(command):
    code = (
        "import sys\nfrom stepladder.cli.main import main\n"
        f"try:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch:', 'torch' in sys.modules)"
    )
    assert run(code).splitlines()[-1] == "torch: False"
