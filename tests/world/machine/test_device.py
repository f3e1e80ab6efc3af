"""A device is picked by name or by what is there, and never quietly another than was asked for."""

import pytest
import torch

from stepladder.errors import WorldError
from stepladder.world import pick_device, synchronize
from stepladder.world.machine.device import device_name


@pytest.mark.parametrize(
    ("name", "local_rank", "num_cuda", "device"),
    [
        ("auto", 0, 0, "cpu"),
        ("cpu", 0, 4, "cpu"),
        ("auto", 0, 4, "cuda:0"),
        ("auto", 3, 4, "cuda:3"),
        ("cuda", 5, 4, "cuda:1"),  # more ranks than devices share them
        ("cuda:2", 0, 4, "cuda:2"),
    ],
)
def test_a_name_picks_a_device(name, local_rank, num_cuda, device):
    assert device_name(name, local_rank, num_cuda) == device


@pytest.mark.parametrize(
    ("name", "num_cuda", "message"),
    [
        ("cdua", 1, "device: 'cdua' is not a device. Did you mean 'cuda'?"),
        ("tpu", 1, "device: 'tpu' is not a device."),
        (
            "cuda",
            0,
            f"device: 'cuda' asked for and torch {torch.__version__} sees no CUDA device. "
            "Use device=cpu, or run 'stepladder doctor' to see what is missing.",
        ),
        (
            "cuda:4",
            4,
            "device: cuda:4 asked for and this machine has 4. Use cuda:0 to cuda:3.",
        ),
        (
            "cuda:x",
            4,
            "device: 'cuda:x' does not number a CUDA device. Use cuda, or cuda:0 for the first.",
        ),
        (
            "cuda:²",
            4,
            "device: 'cuda:²' does not number a CUDA device. Use cuda, or cuda:0 for the first.",
        ),
        ("cuda:", 4, "device: 'cuda:' does not number a CUDA device."),
        ("cuda:-1", 4, "device: 'cuda:-1' does not number a CUDA device."),
        (
            "cpu:1",
            4,
            "device: 'cpu:1' does not number a CUDA device. Use cpu, or cuda:0 for the first.",
        ),
        ("auto:1", 4, "device: 'auto:1' does not number a CUDA device."),
    ],
)
def test_a_device_that_cannot_be_is_refused(name, num_cuda, message):
    with pytest.raises(WorldError) as caught:
        device_name(name, 0, num_cuda)
    assert str(caught.value).startswith(message)


def test_this_machines_device_is_found_and_waits():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert pick_device().type == expected
    assert pick_device("cpu") == torch.device("cpu")
    synchronize(pick_device())
