"""The facts of a model that is frozen but for low-rank adapters beside some of its products.

A frozen weight gets no gradient and no optimizer state, and backward multiplies once by it, for the
gradient of its input, where a trained one asks for two products. What only the gradient of a weight
would need is not kept: the input of a product without an adapter, unless something else keeps it.
An adapter of rank r beside a product of d by k is a product of d by r and one of r by k. Run one by
one, its operations read the input, scale the result and add it to the frozen one; adapters are
fp32, so the input is cast and kept once more for each (`moved` and `eager`; peft does the same).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from stepladder.errors import PlanError, require_count

from .facts import Cut, ElementsByType, Facts, Launches, MatmulFacts, MemoryTraffic, Part

NAMES = {7: ("q", "k", "v", "o", "gate", "up", "down"), 6: ("q", "k", "v", "o", "up", "down")}

# Of one adapter: two products, a scale and a sum, and casts; in backward twice the products.
AHEAD, BACK = Launches(4, 7, 2), Launches(7, 12, 4)


def with_adapters(facts: Facts, rank: int, products: Collection[str]) -> Facts:
    """The facts of the same transformer, frozen, with adapters beside the products that are named.

    >>> from stepladder.workload import find_facts
    >>> frozen = with_adapters(find_facts("llama2-7b"), 8, ("q", "v"))
    >>> sum(p.count * (p.parameters - p.frozen_parameters) for p in frozen.parts)
    4194304
    """
    require_count("rank", rank, "the inner width of an adapter")
    return replace(facts, parts=tuple(adapted(part, rank, products) for part in facts.parts))


def adapted(part: Part, rank: int, products: Collection[str]) -> Part:
    """A part frozen; a block of a transformer also gets its adapters."""
    still = tuple(replace(m, backward=1) for m in part.matmuls)
    frozen = replace(
        part,
        frozen_parameters=part.parameters, frozen_whole_parameters=part.whole_parameters,
        narrowed_parameters=sum(m.weights for m in part.matmuls),
        matrices=0, whole_matrices=0, matrix_rows=0, matmuls=still, tensors=0,
    )  # fmt: skip
    if part.name != "block":
        return frozen
    names = NAMES.get(len(still), ())
    if unknown := set(products) - set(names):
        problem = f"'{min(unknown)}' is no product of a block"
        raise PlanError("products", problem, f"Known: {', '.join(names)}.")
    chosen = [m for name, m in zip(names, still) if name in products]
    pairs = [pair for m in chosen for pair in pair_of(m, rank)]
    more = sum(m.weights for m in pairs)
    whole = sum(m.weights for m in pairs if not m.cut)
    count, idle = len(chosen), unkept(part, names, products)
    casts = ElementsByType(single=float(sum(sides(m)[1] for m in chosen)))
    return replace(
        frozen,
        parameters=part.parameters + more, whole_parameters=part.whole_parameters + whole,
        matrices=more, whole_matrices=whole, matrix_rows=sum(m.columns for m in pairs),
        matmuls=(*still[:-1], *pairs, still[-1]),
        moved=with_adapter_traffic(part.moved, chosen),
        eager=part.eager + idle + casts, compiled=part.compiled + idle,
        launches=added(part.launches, AHEAD, count),
        launches_back=added(part.launches_back, BACK, count),
        tensors=2 * count,
    )  # fmt: skip


def pair_of(matrix: MatmulFacts, rank: int) -> tuple[MatmulFacts, MatmulFacts]:
    """The two products of an adapter; the first is too narrow to cut."""
    out: Cut = "columns" if matrix.cut == "columns" else ""
    return (
        MatmulFacts(matrix.rows, matrix.inner, rank),
        MatmulFacts(matrix.rows, rank, matrix.columns, out),
    )


def unkept(part: Part, names: tuple[str, ...], products: Collection[str]) -> ElementsByType:
    """Inputs that only the gradients of frozen weights would need, taken away."""
    by_name = dict(zip(names, part.matmuls))
    groups = (("q", "k", "v"), ("gate", "up"), ("down",))  # whose input is one tensor; o's is kept
    alone = [g for g in groups if not set(g) & set(products)]
    sizes = [max(by_name[n].rows * by_name[n].inner for n in g if n in by_name) for g in alone]
    return ElementsByType(work=-float(sum(sizes)))


def with_adapter_traffic(moved: MemoryTraffic, chosen: list[MatmulFacts]) -> MemoryTraffic:
    """A result scaled (2) and added (3) where operations run one by one; fused, it is added (2)."""
    given, read = (float(sum(sizes)) for sizes in zip(*map(sides, chosen), strict=True))
    one_by_one = ElementsByType(work=5 * given + read, single=read)
    return replace(
        moved,
        eager=moved.eager + one_by_one,
        compiled=moved.compiled + ElementsByType(work=2 * given),
    )


def sides(matrix: MatmulFacts) -> tuple[int, int]:
    """Elements that a product gives and reads."""
    return matrix.rows * matrix.columns, matrix.rows * matrix.inner


def added(launches: Launches, each: Launches, count: int) -> Launches:
    return Launches(
        launches.eager + count * each.eager,
        launches.mixed + count * each.mixed,
        launches.compiled + count * each.compiled,
    )
