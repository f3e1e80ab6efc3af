"""Tensors of two devices that meet in a user's code, named with the line to write.

Meta is the second device.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError
from stepladder.world.mixed_devices import explain_mixed_devices

CPU = torch.device("cpu")
ELSEWHERE = torch.ones(4, device="meta")


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.mask = torch.ones(4, device="meta")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.mask


class Making(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = torch.ones(4, device="meta")
        return x.add(
            shift,
        )


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = [torch.ones(4, device="meta")]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.tables[0]


class Handing(nn.Module):
    """Hands a tensor to a module of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.ones(2, 4, device="meta")
        return self.inner(x)


class Adding(nn.Module):
    """Makes a tensor where it uses it, on whatever device is the default."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.device("meta"):
            return x + torch.arange(4)


class Chaining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones_like(x).to("meta")


def weighted(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output * ELSEWHERE).sum() + targets.sum()


def explained(function, *args: torch.Tensor, module: nn.Module | None = None) -> str:
    """The error where `function` is a part of `module`, or itself the module, or the loss."""
    with pytest.raises(RuntimeError) as caught:
        function(*args)
    error = explain_mixed_devices(caught.value, module or nn.Identity(), CPU)
    assert isinstance(error, ModelError)
    return re.sub(r"\.py:\d+", ".py:LINE", str(error))


def test_an_attribute_that_is_no_buffer_is_to_be_one() -> None:
    inner = Masked()
    module = nn.ModuleDict({"blocks": nn.ModuleList([inner])})
    assert explained(inner, torch.ones(2, 4), module=module) == (
        "Masked 'blocks.0': 'self.mask' is on meta while 'x' is on cpu (test_mixed_devices.py:LINE:"
        " return self.inner(x) * self.mask). In its __init__ write self.register_buffer('mask', "
        "...) where it sets self.mask: a buffer moves with the module."
    )


def test_a_tensor_made_in_forward_is_to_be_moved_before_its_use() -> None:
    assert explained(Making(), torch.ones(2, 4)) == (
        "Making: 'shift' is on meta while 'x' is on cpu (test_mixed_devices.py:LINE: return "
        "x.add(). Add shift = shift.to(x.device) before that line."
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Listing(), "'self.tables[0]' is on meta while 'x' is on cpu"),
        (Listing(), "Write self.tables[0].to(x.device) in that line."),
        (Handing(), "Handing: 'x' is on meta while the run is on cpu"),
        (Handing(), "Add x = x.to('cpu') before that line."),
        (Adding(), "Adding: 'torch.arange(4)' is made on meta while 'x' is on cpu"),
        (Adding(), "Write torch.arange(4, device=x.device)."),
        (Chaining(), "Chaining: a tensor is on meta while 'x' is on cpu"),
        (Chaining(), "Move it there with .to(x.device)."),
    ],
)
def test_what_is_elsewhere_is_named_with_the_way_to_move_it(module: nn.Module, said: str) -> None:
    assert said in explained(module, torch.ones(2, 4))


def test_a_loss_is_named_by_its_function() -> None:
    said = explained(weighted, torch.ones(2, 4), torch.ones(2))
    assert said.startswith("weighted: 'ELSEWHERE' is on meta while 'output' is on cpu")
    assert said.endswith("Write ELSEWHERE.to(output.device) in that line.")


def test_code_without_a_source_is_searched_by_its_variables() -> None:
    names: dict = {"torch": torch}
    exec("def typed(x):\n    far = torch.ones(4, device='meta')\n    return x + far", names)
    said = explained(names["typed"], torch.ones(2, 4))
    assert said.startswith("typed: 'far' is on meta while 'x' is on cpu (<string>")


def test_errors_of_other_kinds_are_left_alone() -> None:
    for error in (RuntimeError("mine"), ValueError("not on the same device")):
        assert explain_mixed_devices(error, nn.Identity(), CPU) is None
    nowhere = RuntimeError("Expected all tensors to be on the same device")  # never raised
    assert explain_mixed_devices(nowhere, nn.Identity(), CPU) is None
