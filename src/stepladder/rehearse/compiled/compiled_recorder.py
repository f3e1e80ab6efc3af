"""The recorder of a step that is compiled: it also notes who reads and writes what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from stepladder.kernels.graph.compile import compile_scope
from stepladder.plan import SettledPlan
from stepladder.rehearse.recorder import BACKWARD, FORWARD, Allocation, Event, Recorder
from stepladder.seam.dispatch import operator_name, writes_in_place
from stepladder.seam.storages import plain_tensors, storage_id

from .compiled_graph import Graph, is_fused, nodes_of
from .lifetimes import lifetimes_of


@dataclass(eq=False)
class CompiledRecorder(Recorder):
    """Writes down the graphs of the passes beside what they allocate."""

    asked: SettledPlan | None = None  # the plan, with its compiler
    graphs: list[Graph] = field(default_factory=list)
    current: Graph | None = None  # whose operations are at work

    def __post_init__(self) -> None:
        assert self.asked is not None
        self.with_loss = self.asked.compiles_loss
        kernel_scratch = self.scratch

        def scratch(op: Any, args: Any, made: Any) -> int:
            fused = self.current is not None and is_fused(operator_name(op))
            return 0 if fused else kernel_scratch(op, args, made)

        self.scratch = scratch

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(op, types, args, kwargs)
        if result is not NotImplemented and self.current is not None:
            self.follow_graph(self.current, op, (args, kwargs or {}), result)
        return result

    def follow_graph(self, graph: Graph, op: Any, given: Any, result: Any) -> None:
        reads, writes = self.allocations(given), self.allocations(result)
        if not writes_in_place(op):  # but makes something new, or a view
            writes = tuple(one for one in writes if one not in reads)
        nodes = nodes_of(operator_name(op), reads, writes, len(self.events))
        if self.phase == BACKWARD:
            graph.backward += nodes
            if torch.is_grad_enabled():  # the forward pass is taken again from what it asks for
                graph.saved.update(reads)
        else:
            graph.forward += nodes
        graph.end = len(self.events)

    def allocations(self, tree: Any) -> tuple[Allocation, ...]:
        found: dict[Allocation, None] = {}
        for tensor in plain_tensors(tree):
            one = self.alive.get(storage_id(tensor.untyped_storage()))
            if one is not None:
                found[one] = None
        return tuple(found)

    def follow_phase(self) -> None:
        before = self.phase
        super().follow_phase()
        if self.phase != before and not (self.with_loss and self.phase == BACKWARD):
            self.current = None

    def enter(self, given: Any) -> None:
        """Begin a graph with a forward pass that is followed by a backward pass."""
        if not torch.is_grad_enabled() or self.phase != FORWARD or self.current is not None:
            return
        graph = self.current = Graph()
        self.graphs.append(graph)
        for tensor in plain_tensors(given):
            if tensor.requires_grad and not self.with_loss:
                tensor.register_hook(partial(self.end_backward, graph))

    def leave(self, output: Any) -> None:
        """End the forward pass with what the part returns, unless its loss belongs to it."""
        graph = self.current
        if self.with_loss or graph is None or self.phase != FORWARD:
            return
        self.current = None
        tensors = plain_tensors(output)
        graph.outputs.update(self.allocations(tensors))
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(partial(self.begin_backward, graph))

    def begin_backward(self, graph: Graph, gradient: Tensor) -> None:
        if self.phase == BACKWARD:
            self.current = graph

    def end_backward(self, graph: Graph, gradient: Tensor) -> None:
        if self.current is graph:
            self.current = None

    def final_events(self) -> list[Event]:
        """The births and deaths of the step as it is compiled."""
        events = self.events
        changes: dict[int, list[Event]] = {}
        gone: set[Allocation] = set()
        deaths = {event.allocation: i for i, event in enumerate(events) if not event.born}
        for graph in self.graphs:
            if graph.backward:
                gone |= replace_lifetimes(graph, events, deaths, changes)
        made: list[Event] = []
        for index, event in enumerate(events):
            made += changes.get(index, ())
            if event.allocation not in gone:
                made.append(event)
        return made + changes.get(len(events), [])


def replace_lifetimes(
    graph: Graph,
    events: list[Event],
    deaths: dict[Allocation, int],
    changes: dict[int, list[Event]],
) -> set[Allocation]:
    """Add the graph's own births and deaths, by place; what has no other ones any more."""
    forward, backward = graph.made_in(graph.forward), graph.made_in(graph.backward)
    never = len(events)
    staying = {one for one in backward if deaths.get(one, never) >= graph.end}
    staying |= graph.outputs | {one for one in (*forward, *backward) if one.owner == "gradients"}
    # What is made empty is written by a kernel of a library, and held by that.
    staying |= {
        one
        for node in (*graph.forward, *graph.backward) if "empty" in node.name
        for one in node.writes
    }  # fmt: skip
    found = lifetimes_of(graph, staying)
    ending: dict[int, list[Allocation]] = {}
    for one, node in found.last.items():
        if one in found.born and one not in staying:
            ending.setdefault(node.place, []).append(one)
    for one, node in found.born.items():
        if one in staying:
            continue
        here = changes.setdefault(node.place, [])
        event = events[min(node.place, never) - 1]
        dying = ending.get(node.place, [])
        over = next((old for old in dying if node.fused and old.num_bytes == one.num_bytes), None)
        if over is not None:  # written over
            dying.remove(over)
            here.append(Event(over, False, event.phase, event.module))
        here.append(Event(one, True, event.phase, event.module))
        if one not in found.last:
            ending.setdefault(node.place, []).append(one)
    for place, dying in ending.items():
        event = events[min(place, never) - 1]
        changes.setdefault(place, []).extend(
            Event(one, False, event.phase, event.module) for one in dying
        )
    return {one for one in (*forward, *backward) if one not in staying}


@contextmanager
def graphs_followed(
    recorder: Recorder, module: nn.Module, blocks: Sequence[nn.Module]
) -> Iterator[None]:
    """Context in which a recorder of a compiled step is told when each graph begins and ends."""
    if not isinstance(recorder, CompiledRecorder):
        yield
        return
    assert recorder.asked is not None
    scope, _ = compile_scope(blocks, recorder.asked)
    compiled = set(blocks) if scope == "blocks" else {module}

    def enter(part: nn.Module, args: Any) -> None:
        if part in compiled:
            recorder.enter(args)

    def leave(part: nn.Module, args: Any, output: Any) -> None:
        if part in compiled:
            recorder.leave(output)

    handles = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
