"""The ground floors and `--help` start in a blink, without torch."""

import resource
import subprocess
import sys

import pytest

from stepladder.cli.main import COMMANDS

GROUND = ["errors", "hardware", "workload", "plan", "record", "planner", "dashboard"]


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


@pytest.mark.soak
@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)], ids=" ".join)
def test_help_answers_in_under_half_a_second(words):
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "stepladder.cli.main", *words, "--help"]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Its own processor time, at best: this asks about the code and not about a busy machine.
    assert min(once() for _ in range(3)) < 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_does_not_import_torch(command):
    code = (
        "import sys\nfrom stepladder.cli.main import main\n"
        f"try:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('torch:', 'torch' in sys.modules)"
    )
    assert run(code).splitlines()[-1] == "torch: False"
