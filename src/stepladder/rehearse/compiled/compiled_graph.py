"""A compiled pass as a graph: operations in order, and the storages that they read and write.

It is built from the operations of an eager step. What the compiler takes apart is taken apart here
too: a normalisation is a statistic, which is small, and cheap arithmetic on what it read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepladder.rehearse.recorder import Allocation

# What the compiler calls a library for, draws, or writes to scattered places: it is not fused.
APART = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "_scaled_mm",
    "_grouped_mm", "embedding_dense_backward", "index_put", "index_put_", "_index_put_impl_",
    "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "index_add",
    "index_add_", "sort", "topk", "cumsum", "cumprod", "nonzero", "_unique2", "kthvalue",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_adaptive_avg_pool2d_backward",
    "grid_sampler_2d", "grid_sampler_2d_backward", "masked_select", "linalg_vector_norm",
    "max_pool3d_with_indices", "avg_pool3d",
    "max_pool3d_with_indices_backward", "avg_pool3d_backward", "_ctc_loss", "_cdist_forward",
)  # fmt: skip
APART_IN_NAME = ("attention", "rnn", "empty", "_fft", "linalg", "_foreach", "_fused")
RANDOM = ("bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like", "uniform_",
          "normal_", "randperm", "multinomial")  # fmt: skip
# Their first result is cheap arithmetic on what they read and on their other results.
WITH_STATISTICS = ("layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm")
DROPOUT, POOLING = "native_dropout", "max_pool2d_with_indices"
INDEX = 8  # bytes
REDUCED = 4  # times smaller than what it was made of: a reduction, which is not computed again


@dataclass(slots=True, eq=False)
class Node:
    """An operation, or the part of one that makes some of its results."""

    name: str
    reads: tuple[Allocation, ...]
    writes: tuple[Allocation, ...]
    place: int  # among the events of the step: how many there were when it was done
    fused: bool  # whether the compiler writes its kernel
    again: bool = True  # whether it may be computed again in backward


@dataclass(slots=True, eq=False)
class Graph:
    """The operations of a forward pass and of its backward pass."""

    forward: list[Node] = field(default_factory=list)
    backward: list[Node] = field(default_factory=list)
    outputs: set[Allocation] = field(default_factory=set)  # that leave it
    saved: set[Allocation] = field(default_factory=set)  # for a forward pass that is taken again
    end: int = 0  # among the events of the step

    def made_in(self, nodes: Iterable[Node]) -> dict[Allocation, list[Node]]:
        """The storages that begin with these operations, and all that write to each."""
        makers: dict[Allocation, list[Node]] = {}
        for node in nodes:
            for one in node.writes:
                if one in makers or one not in node.reads:
                    makers.setdefault(one, []).append(node)
        return makers


def nodes_of(
    name: str, reads: tuple[Allocation, ...], writes: tuple[Allocation, ...], place: int
) -> list[Node]:
    """An operation, in the parts that the compiler sees."""
    written = [one for one in writes if one.num_bytes]
    if not written:
        return []
    if name == POOLING:  # the compiler keeps places within a window, a byte each
        written[1].num_bytes //= INDEX
    if name == f"{POOLING}_backward":  # and asks for nothing else
        reads = (reads[0], reads[-1])
    if name == DROPOUT:
        result, mask = written[0], tuple(written[1:])
        return [
            Node("rand", (), mask, place, True, again=False),
            Node(name, (*reads, *mask), (result,), place, True),
        ]
    forward_norm = any(word in name for word in WITH_STATISTICS) and "backward" not in name
    if forward_norm and len(written) > 1:
        result, statistics = written[0], tuple(written[1:])
        return [
            Node(f"{name} statistics", reads, statistics, place, True, again=False),
            Node(name, (*reads, *statistics), (result,), place, True),
        ]
    fused = is_fused(name)
    again = fused and name not in RANDOM and not is_reduction(reads, written)
    return [Node(name, reads, tuple(written), place, fused, again)]


def is_fused(name: str) -> bool:
    return name not in APART and not any(word in name for word in APART_IN_NAME)


def is_reduction(reads: Iterable[Allocation], writes: Iterable[Allocation]) -> bool:
    made = sum(one.num_bytes for one in writes)
    return REDUCED * made < sum(one.num_bytes for one in reads)
