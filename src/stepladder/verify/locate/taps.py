"""Hooks that hand over what every module takes and returns, and the gradients of what it returns.

A block that is recomputed runs its forward again within backward: that is passed over, and so is
every trial pass outside of a micro-batch.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.seam.dispatch import in_backward

from .sites import Site, tensors_in

Note = Callable[[Site, int, Tensor], None]  # a site, its micro-batch and what is there


class Taps:
    """Hooks on modules, which note tensors while a micro-batch is `during`."""

    def __init__(self, modules: Iterable[tuple[str, nn.Module]], note: Note) -> None:
        self.note = note
        self.micro: int | None = None  # the micro-batch that is computed; None: a trial
        self.calls: Counter[str] = Counter()  # of each module so far in this forward pass
        self.callers: dict[tuple[str, int], str] = {}  # whose forward a module was called in
        self.takers: dict[Site, str] = {}  # the outermost module that an output was given to
        self.returned: dict[Site, Site] = {}  # an output that the module around it returns as it is
        self.running: list[str] = []
        self.made: dict[int, tuple[Tensor, list[Site]]] = {}  # outputs of this pass, by identity
        for name, module in modules:
            module.register_forward_pre_hook(partial(self.before, name), with_kwargs=True)
            module.register_forward_hook(partial(self.after, name))

    @contextmanager
    def during(self, micro: int) -> Iterator[None]:
        """A block with one micro-batch's forward pass."""
        self.micro = micro
        self.calls.clear()
        self.running.clear()
        try:
            yield
        finally:
            self.micro = None
            self.made.clear()

    @property
    def listening(self) -> bool:
        return self.micro is not None and torch.is_grad_enabled() and not in_backward()

    def before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.listening:
            return
        assert self.micro is not None
        call = self.calls[name]
        self.calls[name] += 1
        self.callers.setdefault((name, call), self.running[-1] if self.running else "")
        self.running.append(name)
        for part, tensor in tensors_in(by_name(module, args, kwargs)):
            for made in self.made.get(id(tensor), (None, []))[1]:
                self.takers.setdefault(made, name)
            if tensor.dtype is not torch.bool:
                self.note(Site("input", name, call, part), self.micro, tensor.detach())

    def after(self, name: str, module: nn.Module, args: Any, outputs: Any) -> None:
        if not self.listening:
            return
        assert self.micro is not None
        call = self.calls[name] - 1
        while self.running and self.running.pop() != name:
            pass  # a forward that ended in an exception never came here
        for part, tensor in tensors_in(outputs):
            if not tensor.is_floating_point():
                continue
            site = Site("output", name, call, part)
            made = self.made.setdefault(id(tensor), (tensor, []))[1]
            if made:
                self.returned.setdefault(made[-1], site)
            made.append(site)
            for one in made if name == "" else ():
                self.takers.setdefault(one, "loss")
            self.note(site, self.micro, tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(partial(self.backward, site, self.micro))

    def backward(self, site: Site, micro: int, gradient: Tensor | None) -> None:
        if gradient is None:  # of an output that DDP returns and no loss reads
            return
        self.note(site._replace(kind="output gradient"), micro, gradient.detach())


def by_name(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names that the module's class gives them, however they were passed."""
    try:
        names = list(inspect.signature(type(module).forward).parameters)[1:]
    except (TypeError, ValueError):  # written in C
        names = []
    named = {names[i] if i < len(names) else str(i): value for i, value in enumerate(args)}
    return {**named, **kwargs}
