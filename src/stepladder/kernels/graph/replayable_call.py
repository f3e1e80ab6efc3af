"""Module and loss compiled as one graph, in whose place a recording may answer.

A recorded step that is replayed runs none of the module's Python, so it would not see an attribute
that a training loop changes. Here the compiled function is called at every step all the same. The
compiler checks its guards (attributes, modes, globals, shapes, what is trained), carries out side
effects that Python can see, and then calls its graph with the tensors that it found. Only there,
if the graph and every tensor's address are those that were recorded, an earlier result stands in
for it, and its kernels are left to the recording. In every other case the graph runs.

The whole of forward and loss must be one graph: what ran between two of them would see numbers of
an earlier step. A function that is compiled in pieces runs as it always does, and says why.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import first_line
from stepladder.seam.inductor import compile_graph

from .compile import with_own_code

Graph = Callable[..., Sequence[Any]]
Facts = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One call of a compiled graph: what it read, and what came of it."""

    graph: Graph
    args: tuple[Any, ...]
    facts: Facts
    outputs: Sequence[Any]

    @classmethod
    def of(cls, graph: Graph, args: tuple[Any, ...], outputs: Sequence[Any]) -> GraphCall:
        plain = [one.detach() if isinstance(one, Tensor) else one for one in outputs]
        return cls(graph, args, facts_of(args), plain)

    def answers(self, graph: Graph, args: tuple[Any, ...]) -> bool:
        """Whether this very graph is called with these very tensors."""
        return graph is self.graph and facts_of(args) == self.facts

    def why_not(self, device: torch.device) -> str:
        """Why no recording can stand in for such a call; nothing where one can."""
        if len(self.outputs) != 1 or not isinstance(self.outputs[0], Tensor):
            return f"its forward keeps {len(self.outputs) - 1} results beside the loss"
        for one in self.args:
            if isinstance(one, Tensor):
                if one.device.type != device.type and not is_number(one):
                    return f"it reads a tensor on {one.device.type}"
            elif not isinstance(one, (int, float, bool)):
                return f"it reads a {type(one).__name__}"
        return ""

    def run(self) -> Any:
        """The loss, computed by the graph."""
        return self.graph(*self.args)[0]


class ReplayableCall:
    """The loss of inputs and targets, compiled with its module."""

    def __init__(
        self, function: Callable[[Any, Any], Tensor], options: dict[str, Any] | None
    ) -> None:
        self.function, self.options = function, options
        self.broken = ""  # why it is not one graph
        self.seen: list[GraphCall] | None = None  # while calls are noted
        self.ran = False  # whether a graph was called since the last look
        self.expected: GraphCall | None = None
        self.answered = False
        self.compiled = compile_whole(function, backend_of(self, options))

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        self.ran = False
        try:
            made: Tensor = self.compiled(inputs, targets)
        except torch.OutOfMemoryError:
            raise
        except Exception as unable:  # in tracing: the graph itself may fail as it always would
            if self.broken or self.ran:
                raise
            self.broken = first_line(unable.__cause__ or unable)
            self.compiled = compile_in_pieces(self.function, self.options)
            made = self.compiled(inputs, targets)
        return made

    def run(self, graph: Graph, args: tuple[Any, ...]) -> Sequence[Any]:
        """Called by compiled code in place of its graph."""
        self.ran = True
        if self.expected is not None and self.expected.answers(graph, args):
            self.answered, expected, self.expected = True, self.expected, None
            return expected.outputs
        outputs = graph(*args)
        if self.seen is not None:
            self.seen.append(GraphCall.of(graph, args, outputs))
        return outputs

    @contextmanager
    def noting(self) -> Iterator[list[GraphCall]]:
        """A context in which calls of graphs are noted."""
        seen: list[GraphCall] = []
        self.seen = seen
        try:
            yield seen
        finally:
            self.seen = None

    @contextmanager
    def answering(self, expected: GraphCall) -> Iterator[None]:
        """A context in which a call like this one is answered and `answered` says that it was."""
        self.expected, self.answered = expected, False
        try:
            yield
        finally:
            self.expected = None


def facts_of(args: tuple[Any, ...]) -> Facts:
    """Where tensors lie, and numbers; guards have compared shapes and types."""
    return tuple([fact_of(one) if isinstance(one, Tensor) else one for one in args])


def fact_of(tensor: Tensor) -> Any:
    return ("number", tensor.item()) if is_number(tensor) else tensor.data_ptr()


def is_number(tensor: Tensor) -> bool:
    """Whether this is a float of Python's, as compiled code passes one that was seen to change."""
    return tensor.dtype == torch.float64 and not tensor.dim() and tensor.device.type == "cpu"


def compile_whole(function: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(
        with_own_code(function), fullgraph=True, backend=backend
    )
    return made


def compile_in_pieces(
    function: Callable[..., Any], options: dict[str, Any] | None
) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(with_own_code(function), options=options)
    return made


def backend_of(call: ReplayableCall, options: dict[str, Any] | None) -> Callable[..., Graph]:
    """What the compiler hands its graphs to; it keeps this for as long as the process lives."""
    refer = weakref.ref(call)

    def backend(traced: torch.fx.GraphModule, examples: list[Any]) -> Graph:
        graph: Graph = compile_graph(traced, examples, options)

        def run(*args: Any) -> Sequence[Any]:
            owner = refer()
            return graph(*args) if owner is None else owner.run(graph, args)

        return run

    return backend
