"""What a GPU's kernels keep and hold where a CPU's do not."""

import pytest
import torch
from torch import nn

from stepladder.model import describe
from stepladder.model.tracing.gpu_kernels import device_kernels

HALF = torch.empty(2, 8, 4, 4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.pow(x, 3.0),
        lambda x: x**2,
        lambda x: x.exp(),
        lambda x: nn.functional.group_norm(x, 4),
    ],
)
def test_autocast_widens_on_a_gpu_what_a_cpu_leaves_narrow(work) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with device_kernels("cuda"):
            assert work(HALF).dtype == torch.float32
        with device_kernels("cpu"):
            assert work(HALF).dtype == torch.bfloat16
    with device_kernels("cuda"):
        assert work(HALF).dtype == torch.bfloat16, "only autocast widens"


def test_a_group_norm_behind_a_convolution_keeps_more_on_a_gpu() -> None:
    module = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.SiLU(), nn.Flatten())
    kept = {
        device: describe(module, sample=torch.zeros(1, 3, 10, 10), device=device).entry.eager
        for device in ("cpu", "cuda")
    }
    wide, narrow = (kept[device].num_bytes(2, 4) for device in ("cuda", "cpu"))
    assert wide > narrow
    assert kept["cuda"].num_bytes(4, 4) == kept["cpu"].num_bytes(4, 4), "float32 is float32"


def test_narrow_images_are_turned_around_a_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Flatten())
    sample = torch.zeros(1, 8, 16, 16)
    gpu, cpu = (describe(module, sample=sample, device=d).entry.scratch for d in ("cuda", "cpu"))
    assert gpu.num_bytes(4, 4) == pytest.approx(cpu.num_bytes(4, 4), abs=64)
    assert gpu.num_bytes(2, 2) > cpu.num_bytes(2, 2)
