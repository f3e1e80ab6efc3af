"""What a compiler sees: graphs, breaks and shapes.

torch.compile watches a function run, writes its operations down as a graph and hands the graph to a
backend, which may fuse: a chain of elementwise operations reads its input once and writes its
result once, where eager torch reads and writes at every one of them. Where the function asks for a
tensor's value in Python (`if x.sum() > 0`, `.item()`), the graph must end, because nobody knows
which way it goes on: a graph break. And a graph holds for the shapes it saw; other shapes are
compiled again, unless sizes are left open (dynamic).

A backend is only a function of a graph and its inputs that returns something to call. Ours counts.

Claim: asking for a value in Python makes two graphs out of one, and with torch.where it stays one;
eight sizes need not be compiled eight times; a fused chain of operations moves a fraction of the
bytes.

Predict: A function is called with eight sizes, and sizes are left open from the beginning. How many
graphs are made? [graphs; function = 8 sizes, open]

Often wrong:
- the condition is asked in Python
- the function is compiled anew at each call
- a fused chain is counted as if each result were written
- every size is compiled by itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx


class Counter:
    """A backend that runs the graph as it is and remembers how many operations it had."""

    def __init__(self) -> None:
        self.graphs: list[int] = []

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward


def broken(x: Tensor) -> Tensor:
    """Double what is positive in sum; asks Python, so the graph ends there."""
    y = x.relu()
    if y.sum() > 10:
        y = y * 2
    return y.sin()


def whole(x: Tensor) -> Tensor:
    """The same, in one graph."""
    y = x.relu()
    # >>> Double y where its sum is over 10, without asking Python.
    # ??? Which line of `broken` needs a number in Python?
    # ??? torch.where takes a condition and what to give in either case, all of them tensors.
    y = torch.where(y.sum() > 10, y * 2, y)
    # <<< if y.sum() > 10:
    # <<<     y = y * 2
    return y.sin()


def graphs_of(
    function: Callable[[Tensor], Tensor], inputs: Sequence[Tensor], *, dynamic: bool | None = None
) -> list[int]:
    """Operations of each graph that is made while the function runs on all inputs."""
    torch.compiler.reset()
    counter = Counter()
    # >>> Compile the function with the counter as its backend, and run it on every input.
    # ??? torch.compile takes backend= and dynamic=, and gives a function.
    # ??? What would happen if that were done anew for each input?
    compiled = torch.compile(function, backend=counter, dynamic=dynamic)
    for x in inputs:
        compiled(x)
    # <<< for x in inputs:
    # <<<     function(x)
    return counter.graphs


def sizes_open() -> bool | None:
    """What to give as `dynamic` where sizes change: None learns from the second size, and False
    compiles each size by itself."""
    # >>> True, False or None: with which do eight sizes make the fewest graphs?
    # ??? graphs_of counts them: try all three.
    # ??? None waits until it has seen a second size. How many graphs are made by then?
    return True
    # <<< return False


def chain_bytes(num_bytes: int, operations: int, *, fused: bool) -> int:
    """What a chain of elementwise operations on a tensor of so many bytes reads and writes."""
    # >>> Bytes that the whole chain reads and writes.
    # ??? What does one operation by itself read and write?
    # ??? When they are fused, which results never reach memory?
    return 2 * num_bytes * (1 if fused else operations)
    # <<< return ...  # type: ignore[return-value]


def measure() -> list[dict[str, Any]]:
    x, sizes = torch.ones(1000, 250), [torch.ones(n) for n in range(2, 10)]
    rows: list[dict[str, Any]] = []
    for name, function in (("asks Python", broken), ("torch.where", whole)):
        graphs = graphs_of(function, [x])
        moved = sum(chain_bytes(x.nbytes, n, fused=True) for n in graphs) / 1e6
        rows.append({"function": name, "graphs": len(graphs), "MB moved": moved})
    for name, dynamic in (("8 sizes, closed", False), ("8 sizes, open", sizes_open())):
        rows.append({"function": name, "graphs": len(graphs_of(whole, sizes, dynamic=dynamic))})
    return rows


if __name__ == "__main__":
    for row in measure():
        print(row)
