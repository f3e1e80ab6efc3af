import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stepladder.errors import OutOfMemory, PlanError
from stepladder.rungs import MemoryLimit, is_out_of_memory
from stepladder.rungs.memory.memory_limit import process_sizes, too_high

CPU = torch.device("cpu")
MIB, GIB = 2**20, 2**30
SCRIPT = """
import torch
torch.set_num_threads(1)
from stepladder.errors import OutOfMemory
from stepladder.rungs.memory.memory_limit import MemoryLimit, process_sizes
a = torch.randn(64, 64, requires_grad=True)
(a @ a).sum().backward()  # whatever torch allocates once is there
room = 256 * 2**20
limit = MemoryLimit(process_sizes()["VmRSS"] + room, torch.device("cpu"))
with limit:
    under = torch.ones(room // 4 * 7 // 8)
    del under
    kept = [torch.ones(room // 16)]
try:
    with limit:
        kept += [torch.ones(room // 16) for _ in range(8)]
except OutOfMemory as refused:
    print(refused, "|", len(kept))
print(torch.ones(room // 2).numel() == room // 2, "after")
"""


def test_an_allocation_over_the_ceiling_is_refused_and_one_under_it_is_not(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    refused, after = run.stdout.splitlines()
    assert (
        refused.startswith("memory: the ceiling of 0.")
        and "was reached when 0.0625 GiB more" in refused
    )
    assert refused.endswith("Raise memory=, halve micro, or add recompute=blocks. | 1")
    assert after == "True after"  # the ceiling is lifted again


def test_a_ceiling_under_what_is_held_names_what_would_do():
    held = r"a ceiling of 0.000977 GiB is under the \d+(\.\d+)? GiB that the process holds already"
    with pytest.raises(PlanError, match=held + r"\. Use \d+\.\dGiB or more\."):
        MemoryLimit(MIB, CPU).__enter__()


def test_a_ceiling_above_the_device_names_the_device():
    assert str(too_high(96 * GIB, 80 * GIB)) == (
        "memory: a ceiling of 96 GiB is above the device's 80 GiB. "
        "Use at most 80GiB, or leave it out."
    )


def test_the_limit_that_was_there_comes_back():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with MemoryLimit(process_sizes()["VmRSS"] + GIB, CPU):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != before[0]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_other_errors_pass_through():
    with pytest.raises(ValueError, match="mine"), MemoryLimit(process_sizes()["VmRSS"] + GIB, CPU):
        raise ValueError("mine")


def test_a_system_without_the_file_says_so():
    with pytest.raises(PlanError, match="reads /nowhere, which this system does not have"):
        process_sizes(Path("/nowhere"))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        OutOfMemory("memory", "full"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_a_failed_allocation_is_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("out of memory"),
        KeyboardInterrupt(),
    ],
)
def test_other_failures_are_not(error):
    assert not is_out_of_memory(error)


def test_torch_words_a_real_failure_so_that_it_is_recognised():
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**58, dtype=torch.uint8)
    assert is_out_of_memory(refused.value)
