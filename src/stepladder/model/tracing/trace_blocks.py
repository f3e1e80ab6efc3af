"""One traced pass of a module, block by block; equal blocks run once.

Blocks are of one kind when class, parameters and what they are given are alike. The first of a kind
is watched through forward and, apart, through its own backward; the others answer with what the
first answered, so a model of eighty blocks is traced as fast as one of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.seam.dispatch import silent_fake_tensors
from stepladder.seam.pytree import tree_map

from .fake_tensors import running
from .operation_recorder import (
    FIRST,
    Held,
    Operation,
    Part,
    Watch,
    address,
    held_by,
    tensors_in,
    total,
)

# A cache of keys would receive a pass's keys twice, so a block that runs again runs without one.
CACHES = {"past_key_value": None, "past_key_values": None, "layer_past": None, "use_cache": False}

Run = Callable[[], Any]


@dataclass(slots=True)
class Traced:
    """What a pass showed of each kind of part, and how the kinds follow each other."""

    parts: dict[str, Part] = field(default_factory=dict)  # "entry", a block's name, "exit"
    order: list[str] = field(default_factory=list)  # for each block, its kind's first block
    scratch: dict[str, Held] = field(default_factory=dict)  # in backward, beside what was kept
    passing: dict[str, Held] = field(default_factory=dict)  # in forward, beside what it keeps
    making: dict[str, Held] = field(default_factory=dict)  # as the largest weight gets its gradient
    back: dict[str, list[Operation]] = field(default_factory=dict)  # of backward
    inputs: dict[str, Held] = field(default_factory=dict)
    outputs: dict[str, Held] = field(default_factory=dict)
    answer: tuple[int, ...] = ()  # the shape of what the module returned


class Trace:
    """Follows a pass through the blocks of a module."""

    def __init__(
        self, module: nn.Module, anatomy: Anatomy, owned: list[Tensor], backward: bool
    ) -> None:
        self.module, self.backward = module, backward
        self.blocks = anatomy.blocks_of(module) if anatomy.blocks else [("entry", module)]
        self.owned, self.found = owned, Traced()
        self.kinds: dict[Any, tuple[str, Any]] = {}  # first block of a kind, and what it returned

    def run(self, forward: Run) -> Traced:
        names = [name for name, _ in self.module.named_modules() if name]
        with (
            silent_fake_tensors(),
            running(self.module, names) as inside,
            self.patched(),
            torch.enable_grad(),
        ):
            self.watch = watch = Watch(self.owned, inside)
            with watch.watching():
                watch.enter("entry", ())
                try:
                    answer = forward()
                except ModelError:
                    raise
                except Exception as problem:
                    raise untraceable(watch, self.module, problem) from problem
            found = self.found
            found.parts = watch.parts
            found.answer = max((tuple(t.shape) for t in tensors_in(answer)), key=volume, default=())
        return found

    @contextmanager
    def patched(self) -> Iterator[None]:
        before = [(block, vars(block).get("forward")) for _, block in self.blocks]
        for index, (name, block) in enumerate(self.blocks):
            block.forward = partial(self.visit, index, name, block.forward)
        try:
            yield
        finally:
            for block, forward in before:
                del block.forward
                if forward is not None:
                    block.forward = forward

    def visit(
        self, index: int, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """A block's turn: watched if it is the first of its kind, answered for if not."""
        watch, given = self.watch, tensors_in((args, kwargs))
        for tensor in given:
            watch.note(tensor)
        self.found.outputs.setdefault("entry", total(map(self.held, given[:1])))
        kind = self.kind_of(self.blocks[index][1], given)
        if kind in self.kinds:
            first, returned = self.kinds[kind]
            answer = tree_map(partial(self.answer_again, first), returned)
        else:
            first = name
            watch.enter(name, (args, kwargs))
            if self.backward:
                self.backward_of(name, forward, args, kwargs)
            self.found.inputs[name] = total(map(self.held, given[:1]))
            answer = forward(*args, **kwargs)
            self.kinds[kind] = name, answer
            self.found.outputs[name] = total(map(self.held, tensors_in(answer)[:1]))
        if first != "entry":
            self.found.order.append(first)
        if index == len(self.blocks) - 1:
            watch.enter("exit", ())
        return answer

    def kind_of(self, block: nn.Module, given: list[Tensor]) -> Any:
        parameters = tuple(
            (name, tuple(p.shape), p.requires_grad) for name, p in block.named_parameters()
        )
        saved = {key for part in self.watch.parts.values() for key in part.saved}
        # What an earlier part has saved already costs this one nothing.
        inputs = tuple(
            (tuple(t.shape), t.dtype, t.requires_grad, bool(saved & {*self.watch.keys_of([t])}))
            for t in given
        )
        return type(block), parameters, inputs

    def answer_again(self, first: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        again = torch.empty_like(value).requires_grad_(value.requires_grad)
        kept = self.watch.parts[first].saved
        if kept.keys() & {*self.watch.keys_of([value])}:
            made = self.watch.note(again)
            assert made is not None
            kept_already = self.watch.parts.setdefault("", Part()).saved
            kept_already[made.key] = Held()
        return again

    def held(self, tensor: Tensor) -> Held:
        made = self.watch.keys.get(address(tensor))
        return made.held if made is not None else Held()

    def backward_of(self, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Note a block's backward, and what stands beside what it keeps at its worst moments."""
        outer, leaves = self.watch, [t for t in self.owned if t.requires_grad]
        outer.paused = True
        watch = Watch(self.owned, outer.inside)
        largest = max((t for t in leaves), key=Tensor.numel, default=None)
        making: list[Held] = []

        def forget(parameter: Tensor) -> None:
            parameter.grad = None
            if parameter is largest:
                making.append(watch.now)

        handles = [p.register_post_accumulate_grad_hook(forget) for p in leaves]
        try:
            with watch.watching():
                kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
                args, kwargs = tree_map(apart, (args, kwargs))
                watch.enter("block", (args, kwargs))
                answer = [forward(*args, **kwargs)]
                # It runs again when the gradient of what it returned has arrived.
                passing = watch.peak_when_kept + total(map(held_by, tensors_in(answer)[:1]))
                worst, ahead = worst_backward(watch, answer.pop())
        finally:
            outer.paused = False
            for handle in handles:
                handle.remove()
        part, found = watch.parts["block"], self.found
        kept = total({**part.inputs, **part.saved}.values()).times(-1)
        found.passing[name], found.scratch[name] = passing + kept, worst + kept
        found.back[name] = part.operations[ahead:]
        if making and name == "entry":  # in a block every weight's gradient meets much the same
            found.making[name] = making[-1] + kept


def worst_backward(watch: Watch, answer: Any) -> tuple[Held, int]:
    """The most that stands while backward runs, and how many operations came before it.

    Its arguments are all that hold the graph.
    """
    outs = [t for t in tensors_in(answer) if t.is_floating_point() and t.requires_grad]
    before = [len(watch.part.operations)]
    if not outs:  # all of it is frozen, and so is what it was given: backward never comes here
        return watch.now, before[0]
    for out in outs:  # until their gradients are here, what runs is the loss below
        out.register_hook(lambda _: before.append(len(watch.part.operations)))
        del out
    # Multiplied, so that the gradient that comes in is a tensor of its own, as in a longer chain.
    loss = torch.stack([(out * 1.0).sum().float() for out in outs]).sum()
    del outs, answer
    watch.peak = watch.now
    with torch.autocast("cpu", enabled=False):
        loss.backward()
    return watch.peak, max(before)


def apart(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return torch.empty_like(value).requires_grad_(value.requires_grad)


def volume(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def untraceable(watch: Watch, module: nn.Module, problem: Exception) -> ModelError:
    operation, where = watch.attempt
    if isinstance(problem, TypeError) and operation == FIRST:
        return ModelError(
            type(module).__name__,
            f"its forward does not take this sample ({problem})",
            "Give its inputs without targets: a tensor, a tuple by position, a dict by name.",
        )
    name = ".".join(filter(None, (type(module).__name__, where)))
    return ModelError(
        name,
        f"{operation} cannot be traced without numbers ({type(problem).__name__}: "
        f"{str(problem).splitlines()[0] if str(problem) else 'no reason given'})",
        "Measure it instead: describe(module, sample=batch, probe=True).",
    )
