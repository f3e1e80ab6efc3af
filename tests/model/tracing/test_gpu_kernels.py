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


def saved_types(work, *inputs: torch.Tensor) -> set[torch.dtype]:
    kept: set[torch.dtype] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work(*inputs)
    return kept


def test_dropout_keeps_a_byte_an_element_on_a_gpu() -> None:
    x = torch.ones(8, requires_grad=True)
    with device_kernels("cuda"):
        assert saved_types(nn.Dropout(0.5), x) == {torch.bool}
        assert nn.Dropout(0.5).eval()(x) is not None
    with device_kernels("cpu"):
        assert saved_types(nn.Dropout(0.5), x) == {torch.float32}


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "whole"),
    [(torch.float32, 2, True), (torch.bfloat16, 2, False), (torch.float32, 4, False)],
)
def test_float32_attention_to_fewer_heads_keeps_whole_matrices(dtype, kv_heads, whole) -> None:
    query = torch.ones(1, 4, 64, 8, dtype=dtype, requires_grad=True)
    key = torch.ones(1, kv_heads, 64, 8, dtype=dtype, requires_grad=True)
    sizes: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    attend = nn.functional.scaled_dot_product_attention
    with (
        device_kernels("cuda"),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        attend(query, key, key, enable_gqa=kv_heads < 4)
    assert (max(sizes) >= 4 * 64 * 64) is whole
