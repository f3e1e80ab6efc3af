"""A strange module trained by a plain torch loop on the whole batch, and by a plan on ranks."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from stepladder.errors import StepladderError
from stepladder.train import climb
from tests.rungs.strange_modules import CASES, random_module

RATE, STEPS = 0.3, 3


def call(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def plain(case: str) -> dict[str, Tensor]:
    """Losses, parameters and buffers after a few steps of SGD; nothing here is stepladder's."""
    _, batches, loss = CASES[case]
    module = random_module(case)
    if case == "lazy":
        with torch.no_grad():
            call(module, batches(0)[0])
    given = [parameter for parameter in module.parameters() if parameter.requires_grad]
    losses = []
    for step in range(STEPS):
        inputs, targets = batches(step)
        value = loss(call(module, inputs), targets)
        value.backward()
        losses.append(value.detach())
        with torch.no_grad():
            for parameter in given:
                if parameter.grad is not None:
                    parameter.sub_(dense(parameter.grad) * RATE)
                    parameter.grad = None
    return state(module, losses)


def planned(case: str, plan: str) -> dict[str, Tensor] | str:
    """The same by stepladder, on this rank; a refusal before the first step is its line."""
    _, batches, loss = CASES[case]
    try:
        run = climb(
            random_module(case),
            loss=copy.deepcopy(loss),  # a run changes it in place
            optimizer=f"sgd lr={RATE}",
            plan=plan,
            sample=batches(0),
            device="cpu",
            timeout_seconds=60,
        )
    except StepladderError as refusal:
        return str(refusal)
    losses = [torch.tensor(run.step(batches(step), rows="global").loss) for step in range(STEPS)]
    return state(run.module, losses)


def planned_all(cases: list[str], plan: str) -> dict[str, Any]:
    """Every case by one plan, in one world."""
    torch.set_num_threads(1)
    return {case: planned(case, plan) for case in cases}


def state(module: nn.Module, losses: list[Tensor]) -> dict[str, Tensor]:
    found = {"loss": torch.stack([loss.float() for loss in losses])}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        found[name] = dense(tensor.detach()).clone()
    return {name: tensor.to(torch.complex128) for name, tensor in found.items()}


def dense(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    return tensor.to_dense() if tensor.is_sparse else tensor


def differences(found: dict[str, Tensor] | str, expected: dict[str, Tensor]) -> list[str]:
    """Names of what differs; a pipeline's rank has some of the parameters, and always the loss."""
    if isinstance(found, str):
        return [found]
    return [
        name
        for name, value in expected.items()
        if name in found
        and not (
            found[name].shape == value.shape
            and torch.allclose(found[name], value, rtol=5e-5, atol=2e-5)
        )
    ]
