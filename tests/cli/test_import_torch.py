"""Torch is loaded without a search for garbage, where it is a command that loads it."""

import gc
import subprocess
import sys

from stepladder.cli.import_torch import loading

OWN = """
import gc
from stepladder.cli.import_torch import loading
searched = []
gc.callbacks.append(lambda phase, _: searched.append(phase))
with loading():
    del searched[:]
    import torch
    held = [torch]
    assert not searched and not gc.isenabled()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert all(torch.nn.Module is not thing for thing in gc.get_objects())  # out of a search's sight
before = gc.get_freeze_count()
try:
    with loading(), loading():
        late = [[] for _ in range(1000)]
        raise OSError
except OSError:
    assert gc.isenabled() and gc.get_freeze_count() >= before + 1000
"""


def test_what_a_command_loads_is_never_searched_for_garbage():
    ran = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


def test_a_process_that_has_torch_already_keeps_its_habits(monkeypatch):
    import torch  # noqa: F401

    # Where this test's file runs alone, a command may have been the first to load it.
    monkeypatch.setattr("stepladder.cli.import_torch.OURS", [])
    frozen = gc.get_freeze_count()
    with loading():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
