"""Checks of compiling: graphs are counted by a backend, results compared with eager ones."""

from __future__ import annotations

from types import ModuleType

import torch

from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "the condition is asked in Python",
        "    y = torch.where(y.sum() > 10, y * 2, y)\n",
        "    y = y * 2 if y.sum().item() > 10 else y\n",
        "the condition is asked in Python",
    ),
    Mistake(
        "the function is compiled anew at each call",
        "        compiled(x)\n",
        "        torch.compiler.reset()\n        torch.compile(function, backend=counter)(x)\n",
        "compile once, call often",
    ),
    Mistake(
        "a fused chain is counted as if each result were written",
        "(1 if fused else operations)",
        "operations",
        "only the last result is written",
    ),
    Mistake(
        "every size is compiled by itself",
        "    return True\n",
        "    return False\n",
        "4 graphs for 4 sizes",
    ),
)


def check_one_graph(lesson: ModuleType) -> None:
    """The function is one graph, and computes what it did."""
    for x in (torch.full((20,), 3.0), torch.full((20,), -1.0), torch.full((20,), 0.1)):
        expect_close(lesson.whole(x), lesson.broken(x), "the result", rtol=0)
    theirs = count(lesson, lesson.whole)
    expect(theirs == 1, f"{theirs} graphs: the condition is asked in Python. Decide on the device.")


def count(lesson: ModuleType, function: object) -> int:
    """How many graphs torch.compile makes of a function, by our own count."""
    torch.compiler.reset()
    counter = lesson.Counter()
    torch.compile(function, backend=counter)(torch.ones(20))  # type: ignore[call-overload]
    return len(counter.graphs)


def check_counting(lesson: ModuleType) -> None:
    """A break makes two graphs, and a second call of the same shape none."""
    x = torch.ones(20)
    found = lesson.graphs_of(lesson.broken, [x])
    expect(found, "no graph was made: compile the function with the counter as its backend.")
    expect(len(found) == 2, f"{len(found)} graphs of a function that asks once, expected 2.")
    again = lesson.graphs_of(lesson.broken, [x, x, x])
    expect(len(again) == 2, f"{len(again)} graphs in three calls alike: compile once, call often.")
    expect(sum(found) == 5, f"{sum(found)} operations in all: relu, sum, >, × and sin are 5.")


def check_sizes(lesson: ModuleType) -> None:
    """Open sizes compile once where closed ones compile each."""
    sizes = [torch.ones(n) for n in range(2, 6)]
    closed = len(lesson.graphs_of(torch.sin, sizes, dynamic=False))
    found = len(lesson.graphs_of(lesson.whole, sizes, dynamic=lesson.sizes_open()))
    expect(found < 4, f"{found} graphs for 4 sizes: leave sizes open.")
    expect(found == 1, f"{found} graphs for 4 sizes, and 1 is enough.")
    expect(closed == 4, f"{closed} graphs for 4 closed sizes.")


def check_traffic(lesson: ModuleType) -> None:
    """A fused chain reads once and writes once."""
    found = lesson.chain_bytes(1000, 5, fused=True)
    expect(found != 10_000, "10,000 bytes for 5 fused operations: only the last result is written.")
    expect_close(found, 2000, "bytes of a fused chain", rtol=0)
    expect_close(lesson.chain_bytes(1000, 5, fused=False), 10_000, "bytes of a chain", rtol=0)
