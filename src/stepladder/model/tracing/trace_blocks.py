"""Tracing one pass of a module block by block, where equal blocks run once.

Blocks are of one kind if their class, parameters and inputs are alike. The first of a kind is
recorded through forward and, separately, through its own backward; the others return copies of the
first one's output, so a model of eighty blocks is traced as fast as one of three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.seam.dispatch import silent_fake_tensors
from stepladder.seam.pytree import tree_map

from .fake_tensors import running_parts
from .operation_recorder import (
    BEFORE_FIRST,
    ElementCounts,
    OperationRecorder,
    RecordedOperation,
    RecordedPart,
    address,
    storage_counts,
    tensors_in,
    total,
)

# A key-value cache would receive a pass's keys twice, so a block's second run goes without one.
CACHES = {"past_key_value": None, "past_key_values": None, "layer_past": None, "use_cache": False}

Run = Callable[[], Any]
Positions = tuple[tuple[int, Any], ...]  # of caches among positional arguments, and what to pass


def cache_positions(forward: Callable[..., Any]) -> Positions:
    """Where a forward takes caches by position, as GPT-2's blocks do."""
    try:
        names = list(signature(forward).parameters)
    except (TypeError, ValueError):  # written in C, or a signature of its own making
        return ()
    return tuple((names.index(name), value) for name, value in CACHES.items() if name in names)


def without_caches(args: Sequence[Any], positions: Positions) -> list[Any]:
    """Positional arguments with every cache left out."""
    kept = list(args)
    for index, value in positions:
        if index < len(kept):
            kept[index] = value
    return kept


@dataclass(slots=True)
class TracedPass:
    """What was recorded of each kind of part, and the order of the kinds."""

    parts: dict[str, RecordedPart] = field(default_factory=dict)  # "entry", a block's name, "exit"
    order: list[str] = field(default_factory=list)  # for each block, its kind's first block
    # At the peak of backward and of forward, and when the largest weight gets its gradient; without
    # what is saved for backward.
    scratch: dict[str, ElementCounts] = field(default_factory=dict)
    passing: dict[str, ElementCounts] = field(default_factory=dict)
    making: dict[str, ElementCounts] = field(default_factory=dict)
    back: dict[str, list[RecordedOperation]] = field(default_factory=dict)  # of backward
    # What a recomputed block keeps: what flows in, and what is saved between it and the next.
    inputs: dict[str, ElementCounts] = field(default_factory=dict)
    outputs: dict[str, ElementCounts] = field(default_factory=dict)
    beside: dict[str, ElementCounts] = field(default_factory=dict)  # saved before the next block
    answer: tuple[int, ...] = ()  # the shape of the module's output


class BlockTracer:
    """Traces a pass through the blocks of a module."""

    def __init__(
        self, module: nn.Module, anatomy: Anatomy, owned: list[Tensor], backward: bool
    ) -> None:
        self.module, self.backward = module, backward
        self.blocks = anatomy.blocks_of(module) if anatomy.blocks else [("entry", module)]
        self.owned, self.found = owned, TracedPass()
        self.kinds: dict[Any, tuple[str, Any]] = {}  # the first block of a kind, and its output
        self.saved_inside: dict[str, set[int]] = {}  # by the block itself: keys of storages

    def run(self, forward: Run) -> TracedPass:
        names = [name for name, _ in self.module.named_modules() if name]
        with (
            silent_fake_tensors(),
            running_parts(self.module, names) as inside,
            self.patched(),
            torch.enable_grad(),
        ):
            self.recorder = recorder = OperationRecorder(self.owned, inside)
            with recorder.recording():
                recorder.enter("entry", ())
                try:
                    answer = forward()
                except ModelError:
                    raise
                except Exception as problem:
                    raise untraceable(recorder, self.module, problem) from problem
            found = self.found
            found.parts = recorder.parts
            for name, inside_it in self.saved_inside.items():
                kept = recorder.parts[name].saved
                beside = total(kept[key] for key in kept.keys() - inside_it)
                found.inputs[name] += beside
                found.beside[name] = beside
            found.answer = max((tuple(t.shape) for t in tensors_in(answer)), key=volume, default=())
        return found

    @contextmanager
    def patched(self) -> Iterator[None]:
        before = [(block, vars(block).get("forward")) for _, block in self.blocks]
        for index, (name, block) in enumerate(self.blocks):
            block.forward = partial(self.run_block, index, name, block.forward)
        try:
            yield
        finally:
            for block, forward in before:
                del block.forward
                if forward is not None:
                    block.forward = forward

    def run_block(
        self, index: int, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Run and record the first block of a kind; for the others return a copy of its output."""
        recorder, given = self.recorder, tensors_in((args, kwargs))
        for tensor in given:
            recorder.record_storage(tensor)
        self.found.outputs.setdefault("entry", total(map(self.counts, given[:1])))
        kind = self.kind_of(self.blocks[index][1], given)
        if kind in self.kinds:
            first, returned = self.kinds[kind]
            answer = tree_map(partial(self.copy_output, first), returned)
            # What comes between this block and the next is like what followed the first of its
            # kind, and is counted there as often as there are such blocks.
            recorder.enter("", ())
        else:
            first = name
            recorder.enter(name, (args, kwargs))
            if self.backward:
                self.trace_backward(name, forward, args, kwargs)
            self.found.inputs[name] = total(map(self.counts, given[:1]))
            answer = forward(*args, **kwargs)
            self.kinds[kind] = name, answer
            self.saved_inside[name] = set(recorder.parts[name].saved)
            self.found.outputs[name] = total(map(self.counts, tensors_in(answer)[:1]))
        if first != "entry":
            self.found.order.append(first)
        if index == len(self.blocks) - 1:
            recorder.enter("exit", ())
        return answer

    def kind_of(self, block: nn.Module, given: list[Tensor]) -> Any:
        parameters = tuple(
            (name, tuple(p.shape), p.requires_grad) for name, p in block.named_parameters()
        )
        saved = {key for part in self.recorder.parts.values() for key in part.saved}
        # Saving a tensor that an earlier part has saved already costs nothing.
        inputs = tuple(
            (tuple(t.shape), t.dtype, t.requires_grad, bool(saved & {*self.recorder.keys_of([t])}))
            for t in given
        )
        return type(block), parameters, inputs

    def copy_output(self, first: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        again = torch.empty_like(value).requires_grad_(value.requires_grad)
        kept = self.recorder.parts[first].saved
        if kept.keys() & {*self.recorder.keys_of([value])}:
            made = self.recorder.record_storage(again)
            assert made is not None
            kept_already = self.recorder.parts.setdefault("", RecordedPart()).saved
            kept_already[made.key] = ElementCounts()
        return again

    def counts(self, tensor: Tensor) -> ElementCounts:
        made = self.recorder.keys.get(address(tensor))
        return made.counts if made is not None else ElementCounts()

    def trace_backward(
        self, name: str, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        """Record a block's backward, and the peaks of its forward and backward."""
        outer, leaves = self.recorder, [t for t in self.owned if t.requires_grad]
        outer.paused = True
        recorder = OperationRecorder(self.owned, outer.inside)
        largest = max((t for t in leaves), key=Tensor.numel, default=None)
        making: list[ElementCounts] = []

        def forget(parameter: Tensor) -> None:
            parameter.grad = None
            if parameter is largest:
                making.append(recorder.now)

        handles = [p.register_post_accumulate_grad_hook(forget) for p in leaves]
        try:
            with recorder.recording():
                kwargs = {name: CACHES.get(name, value) for name, value in kwargs.items()}
                args = tuple(without_caches(args, cache_positions(forward)))
                args, kwargs = tree_map(empty_copy, (args, kwargs))
                recorder.enter("block", (args, kwargs))
                answer = [forward(*args, **kwargs)]
                # When recomputed, the gradient of its output is there as well.
                passing = recorder.peak_when_kept + total(
                    map(storage_counts, tensors_in(answer)[:1])
                )
                worst, ahead = peak_of_backward(recorder, answer)
        finally:
            outer.paused = False
            for handle in handles:
                handle.remove()
        part, found = recorder.parts["block"], self.found
        kept = total({**part.inputs, **part.saved}.values()).times(-1)
        found.passing[name], found.scratch[name] = passing + kept, worst + kept
        found.back[name] = part.operations[ahead:]
        if making and name == "entry":  # in a block this hardly differs between weights
            found.making[name] = making[-1] + kept


def peak_of_backward(recorder: OperationRecorder, answer: list[Any]) -> tuple[ElementCounts, int]:
    """The peak of backward, and how many operations came before it.

    The output is taken out of the list, so that no caller refers to the graph: while dynamo
    evaluates frames, a caller holds its arguments until the call returns.
    """
    outs = [t for t in tensors_in(answer.pop()) if t.is_floating_point() and t.requires_grad]
    before = [len(recorder.part.operations)]
    if not outs:  # all is frozen, and so are its inputs: there is no backward
        return recorder.now, before[0]
    for out in outs:  # operations before their gradients arrive belong to the loss below
        out.register_hook(lambda _: before.append(len(recorder.part.operations)))
        del out
    # Multiplied, so that the incoming gradient is a separate tensor, as in a longer chain.
    loss = torch.stack([(out * 1.0).sum().float() for out in outs]).sum()
    del outs
    recorder.peak = recorder.now
    with torch.autocast("cpu", enabled=False):
        loss.backward()
    return recorder.peak, max(before)


def empty_copy(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return torch.empty_like(value).requires_grad_(value.requires_grad)


def volume(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def untraceable(recorder: OperationRecorder, module: nn.Module, problem: Exception) -> ModelError:
    operation, where = recorder.attempt
    if isinstance(problem, TypeError) and operation == BEFORE_FIRST:
        return ModelError(
            type(module).__name__,
            f"its forward does not take this sample ({problem})",
            "Give a batch as a step takes it: inputs, (inputs, targets), or a dict by name.",
        )
    name = ".".join(filter(None, (type(module).__name__, where)))
    return ModelError(
        name,
        f"{operation} cannot be traced without numbers ({type(problem).__name__}: "
        f"{str(problem).splitlines()[0] if str(problem) else 'no reason given'})",
        "Check that the sample is what its forward takes, or measure it instead: "
        "describe(module, sample=batch, probe=True).",
    )
