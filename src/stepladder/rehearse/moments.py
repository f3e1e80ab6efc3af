"""Which module is at work: forward by calls, backward by the gradients of what the calls returned.

The hooks are those for all modules, so that no module looks as if its author had hooked it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from stepladder.seam.storages import plain_tensors

from .recorder import BACKWARD, FORWARD, UPDATE, Recorder


@contextmanager
def moments_followed(
    recorder: Recorder, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[None]:
    """Context in which the recorder is told the phase and the module of every moment."""
    names = {part: name for name, part in module.named_modules()}

    def enter(part: nn.Module, args: Any) -> None:
        recorder.modules.append(names.get(part, ""))

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        if len(recorder.modules) > 1:
            recorder.modules.pop()
        if recorder.phase == FORWARD and torch.is_grad_enabled() and names.get(part):
            answer = next((t for t in plain_tensors(output) if needs_gradient(t)), None)
            if answer is not None:
                answer.register_hook(partial(go_back, names[part]))

    def go_back(name: str, gradient: Tensor) -> None:
        if recorder.phase == BACKWARD:
            recorder.modules = [name]

    def begin_update(*_: Any) -> None:
        claim_state(recorder, module, optimizer)
        recorder.phase, recorder.modules = UPDATE, [""]

    def end_update(*_: Any) -> None:
        claim_state(recorder, module, optimizer)
        recorder.phase = FORWARD

    with ExitStack() as hooks:
        for handle in (
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave),
            optimizer.register_step_pre_hook(begin_update),
            optimizer.register_step_post_hook(end_update),
        ):
            hooks.callback(handle.remove)
        yield


def needs_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.grad_fn is not None


def claim_state(recorder: Recorder, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Tell the recorder what is a parameter, a gradient, or state of the optimizer."""
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = [*module.parameters(), *module.buffers(), *owned]
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    recorder.claim(state, "optimizer")
    recorder.claim([p.grad for p in parameters if p.grad is not None], "gradients")
    recorder.claim(parameters, "parameters")
