"""Triton programs for the backward pass of attention, in which no two programs write one number.

A program of `_keys` owns some keys of one head, goes over the queries that see them, and adds up
their gradients of key and value; one of `_queries` owns some queries and goes over the keys they
see. Both compute the weights again from the saved log-sum-exp: seven products where five would do
if queries' gradients were added up by whoever comes first, which is the order that differs.

Weights are powers of two: scores are taken in units of log 2, whose power the hardware has.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


class Tiles(NamedTuple):
    """Rows of a program, rows it looks at in one turn (a divisor), and how hardware shares it."""

    own: int
    seen: int
    warps: int
    stages: int


# By the head's width up to 64 and 128; measured on an H200.
KEYS = {64: Tiles(128, 32, 8, 3), 128: Tiles(64, 64, 4, 2)}
QUERIES = {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 3)}
SUMS = Tiles(64, 64, 4, 1)


@triton.jit
def _load(base, rows, columns, stride, num_rows, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """A tile of a matrix whose rows are contiguous; zero beyond its end."""
    at = base + rows[:, None] * stride + columns[None, :]
    if EVEN:
        tile = tl.load(at)
    else:
        tile = tl.load(at, mask=(rows[:, None] < num_rows) & (columns[None, :] < WIDTH), other=0.0)
    return tile


@triton.jit
def _store(base, tile, rows, columns, stride, num_rows, WIDTH: tl.constexpr):
    at = base + rows[:, None] * stride + columns[None, :]
    inside = (rows[:, None] < num_rows) & (columns[None, :] < WIDTH)
    tl.store(at, tile.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _row_sums(
    out, gradient, sums, num_queries, heads,
    out_batch, out_head, out_row, gradient_batch, gradient_head, gradient_row,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sum over a row of the result times its gradient, for each query."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    out += batch * out_batch + head * out_head
    gradient += batch * gradient_batch + head * gradient_head
    o = _load(out, rows, columns, out_row, num_queries, WIDTH, False)
    g = _load(gradient, rows, columns, gradient_row, num_queries, WIDTH, False)
    total = tl.sum(o.to(tl.float32) * g.to(tl.float32), axis=1)
    at = sums + tl.program_id(1).to(tl.int64) * num_queries + rows
    tl.store(at, total, mask=rows < num_queries)


@triton.jit
def _weights(scores, norms, rows, columns, num_rows, num_columns,
             CAUSAL: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    """Weights of keys (rows) for queries (columns), or the other way round by broadcasting."""
    weights = tl.exp2(scores - norms)
    if CAUSAL:
        weights = tl.where(rows <= columns, weights, 0.0)
    if not EVEN:
        weights = tl.where((rows < num_rows) & (columns < num_columns), weights, 0.0)
    return weights


@triton.jit
def _see_queries(
    key_sum, value_sum, k, v, query, gradient, norms, sums, keys, columns, start, end,
    query_row, gradient_row, num_queries, num_keys, factor,
    WIDTH: tl.constexpr, SEEN: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add what queries from start to end send to these keys."""
    for first in range(start, end, SEEN):
        rows = first + tl.arange(0, SEEN)
        q = _load(query, rows, columns, query_row, num_queries, WIDTH, EVEN)
        g = _load(gradient, rows, columns, gradient_row, num_queries, WIDTH, EVEN)
        if EVEN:
            norm = tl.load(norms + rows)
            total = tl.load(sums + rows)
        else:
            norm = tl.load(norms + rows, mask=rows < num_queries, other=0.0)
            total = tl.load(sums + rows, mask=rows < num_queries, other=0.0)
        scores = tl.dot(k, tl.trans(q)) * factor
        weights = _weights(
            scores, norm[None, :] * LOG2_E, keys[:, None], rows[None, :], num_keys, num_queries,
            MASKED, EVEN,
        )  # fmt: skip
        value_sum = tl.dot(weights.to(g.dtype), g, value_sum)
        change = weights * (tl.dot(v, tl.trans(g)) - total[None, :])
        key_sum = tl.dot(change.to(q.dtype), q, key_sum)
    return key_sum, value_sum


@triton.jit
def _keys(
    query, key, value, gradient, norms, sums, key_gradient, value_gradient,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    value_batch, value_head, value_row, gradient_batch, gradient_head, gradient_row,
    kg_batch, kg_head, kg_row, vg_batch, vg_head, vg_row,
    num_queries, num_keys, heads, factor, scale,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, OWN: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """Gradients of some keys and values of one head, which GROUP heads of queries share."""
    first = tl.program_id(0) * OWN
    keys = first + tl.arange(0, OWN)
    columns = tl.arange(0, COLUMNS)
    shared_heads = heads // GROUP
    batch, shared = (tl.program_id(1) // shared_heads).to(tl.int64), tl.program_id(1) % shared_heads
    k = _load(key + batch * key_batch + shared * key_head, keys, columns, key_row, num_keys,
              WIDTH, EVEN)  # fmt: skip
    v = _load(value + batch * value_batch + shared * value_head, keys, columns, value_row, num_keys,
              WIDTH, EVEN)  # fmt: skip
    key_sum = tl.zeros((OWN, COLUMNS), tl.float32)
    value_sum = tl.zeros((OWN, COLUMNS), tl.float32)
    for member in range(GROUP):
        head = shared * GROUP + member
        line = (batch * heads + head) * num_queries
        q = query + batch * query_batch + head * query_head
        g = gradient + batch * gradient_batch + head * gradient_head
        start = 0
        if CAUSAL:
            # Queries beside the keys see some of them; those after them see all.
            start = min(first + OWN, tl.cdiv(num_queries, SEEN) * SEEN)
            key_sum, value_sum = _see_queries(
                key_sum, value_sum, k, v, q, g, norms + line, sums + line, keys, columns,
                first, start, query_row, gradient_row, num_queries, num_keys, factor,
                WIDTH, SEEN, True, EVEN,
            )  # fmt: skip
        key_sum, value_sum = _see_queries(
            key_sum, value_sum, k, v, q, g, norms + line, sums + line, keys, columns,
            start, num_queries, query_row, gradient_row, num_queries, num_keys, factor,
            WIDTH, SEEN, False, EVEN,
        )  # fmt: skip
    _store(key_gradient + batch * kg_batch + shared * kg_head, key_sum * scale, keys, columns,
           kg_row, num_keys, WIDTH)  # fmt: skip
    _store(value_gradient + batch * vg_batch + shared * vg_head, value_sum, keys, columns,
           vg_row, num_keys, WIDTH)  # fmt: skip


@triton.jit
def _see_keys(
    query_sum, q, g, key, value, norm, total, queries, columns, start, end,
    key_row, value_row, num_queries, num_keys, factor,
    WIDTH: tl.constexpr, SEEN: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Add what keys from start to end send to these queries."""
    for first in range(start, end, SEEN):
        rows = first + tl.arange(0, SEEN)
        k = _load(key, rows, columns, key_row, num_keys, WIDTH, EVEN)
        v = _load(value, rows, columns, value_row, num_keys, WIDTH, EVEN)
        scores = tl.dot(q, tl.trans(k)) * factor
        weights = _weights(
            scores, norm[:, None], rows[None, :], queries[:, None], num_keys, num_queries,
            MASKED, EVEN,
        )  # fmt: skip
        change = weights * (tl.dot(g, tl.trans(v)) - total[:, None])
        query_sum = tl.dot(change.to(k.dtype), k, query_sum)
    return query_sum


@triton.jit
def _queries(
    query, key, value, gradient, norms, sums, query_gradient,
    query_batch, query_head, query_row, key_batch, key_head, key_row,
    value_batch, value_head, value_row, gradient_batch, gradient_head, gradient_row,
    qg_batch, qg_head, qg_row,
    num_queries, num_keys, heads, factor, scale,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, OWN: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """Gradients of some queries of one head."""
    # Those that see most keys first: what is left at the end is then short.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * OWN
    queries = first + tl.arange(0, OWN)
    columns = tl.arange(0, COLUMNS)
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    line = (batch * heads + head) * num_queries
    q = _load(query + batch * query_batch + head * query_head, queries, columns, query_row,
              num_queries, WIDTH, EVEN)  # fmt: skip
    g = _load(gradient + batch * gradient_batch + head * gradient_head, queries, columns,
              gradient_row, num_queries, WIDTH, EVEN)  # fmt: skip
    inside = queries < num_queries
    norm = tl.load(norms + line + queries, mask=inside, other=0.0) * LOG2_E
    total = tl.load(sums + line + queries, mask=inside, other=0.0)
    k = key + batch * key_batch + (head // GROUP) * key_head
    v = value + batch * value_batch + (head // GROUP) * value_head
    query_sum = tl.zeros((OWN, COLUMNS), tl.float32)
    end = num_keys
    if CAUSAL:
        # Keys before the queries are seen by all of them; those beside them by some.
        end = first
    query_sum = _see_keys(
        query_sum, q, g, k, v, norm, total, queries, columns, 0, end, key_row, value_row,
        num_queries, num_keys, factor, WIDTH, SEEN, False, EVEN,
    )  # fmt: skip
    if CAUSAL:
        query_sum = _see_keys(
            query_sum, q, g, k, v, norm, total, queries, columns, first,
            min(first + OWN, num_keys), key_row, value_row, num_queries, num_keys, factor,
            WIDTH, SEEN, True, EVEN,
        )  # fmt: skip
    _store(query_gradient + batch * qg_batch + head * qg_head, query_sum * scale, queries, columns,
           qg_row, num_queries, WIDTH)  # fmt: skip


def backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, norms: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor], *, causal: bool, scale: float,
) -> None:  # fmt: skip
    """Fill the gradients of query, key and value, each (batch, heads, rows, width).

    Args:
        norms: the log-sum-exp of each query's scores, contiguous.
    """
    batch, heads, num_queries, width = query.shape
    shared_heads, num_keys = key.shape[1:3]
    columns = max(16, triton.next_power_of_2(width))
    keys, queries = (each[64 if columns <= 64 else 128] for each in (KEYS, QUERIES))
    sums = torch.empty(norms.shape, dtype=torch.float32, device=norms.device)
    _row_sums[(triton.cdiv(num_queries, SUMS.own), batch * heads)](
        out, gradient, sums, num_queries, heads, *strides(out, gradient),
        WIDTH=width, COLUMNS=columns, ROWS=SUMS.own, num_warps=SUMS.warps,
    )  # fmt: skip
    query_gradient, key_gradient, value_gradient = gradients
    read = (query, key, value, gradient)
    steps = strides(*read)
    sizes = (num_queries, num_keys, heads, scale * LOG2_E.value, scale)
    shape = {"WIDTH": width, "COLUMNS": columns, "GROUP": heads // shared_heads, "CAUSAL": causal}
    _keys[(triton.cdiv(num_keys, keys.own), batch * shared_heads)](
        *read, norms, sums, key_gradient, value_gradient, *steps,
        *strides(key_gradient, value_gradient), *sizes,
        **shape, **how(keys, num_keys, num_queries, width),
    )  # fmt: skip
    _queries[(triton.cdiv(num_queries, queries.own), batch * heads)](
        *read, norms, sums, query_gradient, *steps, *strides(query_gradient), *sizes,
        **shape, **how(queries, num_queries, num_keys, width),
    )  # fmt: skip


def strides(*tensors: Tensor) -> list[int]:
    """Of batch, head and row; columns are contiguous."""
    return [step for each in tensors for step in each.stride()[:3]]


def how(tiles: Tiles, own: int, seen: int, width: int) -> dict[str, int | bool]:
    """The tiles as a program takes them, and whether they fit without a rest."""
    even = own % tiles.own == 0 and seen % tiles.seen == 0 and width in (16, 32, 64, 128)
    return {
        "EVEN": even, "OWN": tiles.own, "SEEN": tiles.seen,
        "num_warps": tiles.warps, "num_stages": tiles.stages,
    }  # fmt: skip
