"""Finding out what pieces of a batch weigh in its loss, by computing the loss whole and in pieces.

Nothing is read off a loss's name or class. Weightings are proposed, simple ones first, and one is
taken if it makes every observation's pieces add up to the whole. If none does, each target value is
tried by itself: beside another row, it moves the mean by as much as it weighs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepladder.data import IGNORED, Batch

from .observe_pieces import (
    RELATIVE,
    Observation,
    Value,
    altered,
    is_classes,
    measure_noise,
    observe,
    paths_of_classes,
    values_to_ignore,
)
from .weighting import (
    BY_SHIFTED_TARGETS,
    BY_TARGETS,
    Path,
    Weighting,
    by_class,
    tensor_at,
    tensors_of,
)

MOST_CLASSES = 4096  # that are weighed one by one
AS_GOOD = 4.0  # times the error of the weighting that fits best
MOST_SHOWN = 24  # that targets are drawn from, beside those there are
Table = dict[int, float]  # weights by target value; 1 where none is named


class ClassWeights(TorchFunctionMode):
    """Records the class weights and ignored values that torch's cross-entropies are called with,
    and of how many classes."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Table] = []
        self.num_classes = 0  # the fewest of any call

    @property
    def ignored(self) -> list[int]:
        return sorted({value for table in self.tables for value in table if table[value] == 0})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (functional.cross_entropy, functional.nll_loss):
            weight = given.get("weight", args[2] if len(args) > 2 else None)
            ignored = given.get("ignore_index", args[4] if len(args) > 4 else IGNORED)
            values = [] if weight is None else weight.detach().double().tolist()
            table = {**dict(enumerate(values)), ignored: 0.0}
            if table not in self.tables:
                self.tables.append(table)
            logits: torch.Tensor = given["input"] if "input" in given else args[0]
            classes = logits.shape[:2][-1]
            self.num_classes = min(self.num_classes or classes, classes)
        return func(*args, **given)


def observe_all(
    value: Value,
    batch: Batch,
    sizes: Sequence[int],
    draw: torch.Generator,
    classes: Sequence[int],
    outside: Sequence[int],
) -> list[Observation]:
    """Observations on the batch as it is, then on altered ones that the loss accepts.

    Args:
        classes: values that targets may have, those first that may weigh differently.
        outside: values to try as targets that need not be classes.
    """
    noise = measure_noise(value, batch)
    found = [observe(value, batch, sizes, noise)]
    for other in altered(batch, draw, classes, outside):
        try:
            found.append(observe(value, other, sizes, noise))
        except Exception:  # whatever a loss raises for a value that is no target of its
            continue
    return found


def propose(batch: Batch, tables: Sequence[Table]) -> Iterator[Weighting]:
    """Weightings to try, the simplest first."""
    if isinstance(batch.targets, torch.Tensor) and is_classes(batch.targets):
        # What torch's own function was given is better evidence than what a few rows show.
        for table in tables:
            if table != {IGNORED: 0.0}:
                yield by_class(table)
                yield by_class(table, shifted=True)
        yield BY_TARGETS
        yield BY_SHIFTED_TARGETS
    yield Weighting("rows")
    yield Weighting("sum")
    for path in paths_of_classes(batch):
        for table in (*tables, *ignoring(batch, path)):
            for shifted in (False, True):
                yield by_class(table, path=path, shifted=shifted)
                yield by_class(table, path=path, shifted=shifted, once=True)
    for path, _ in tensors_of(batch):
        for kind in ("total", "positive", "nonzero", "not_nan"):
            yield Weighting(kind, path)
            yield Weighting(kind, path, once=True)


def classes_of(batch: Batch, tables: Sequence[Table], num_classes: int) -> list[int]:
    """Values to draw targets from: of unlike weight first, then those in the batch, then any."""
    if not isinstance(batch.targets, torch.Tensor) or not is_classes(batch.targets):
        return []
    weighed = [
        value for table in tables for value in sorted(table, key=lambda v: table[v]) if value >= 0
    ]
    extreme = [*weighed[-2:], *weighed[:2]]
    seen = [value for value in batch.targets.unique().tolist() if value >= 0]
    return list(dict.fromkeys([*extreme, *seen, *range(min(num_classes, MOST_SHOWN))]))


def count_classes(outputs: Any, targets: Any) -> int:
    """How many classes the outputs have, where their shape says so; else 0."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return 0
    if outputs.dim() != targets.dim() + 1:
        return 0
    last = outputs.shape[-1] if outputs.shape[:-1] == targets.shape else 0
    without = (*outputs.shape[:1], *outputs.shape[2:])
    second = outputs.shape[1] if without == tuple(targets.shape) else 0
    return min(last or second, second or last)


def ignoring(batch: Batch, path: Path) -> Iterator[Table]:
    """Tables that leave out one value, beside -100."""
    yield {IGNORED: 0.0}
    for value in values_to_ignore(tensor_at(batch, path)):
        yield {value: 0.0, IGNORED: 0.0}


def all_fits(
    proposed: Iterable[Weighting], observations: Sequence[Observation], epsilon: float
) -> Iterator[Weighting]:
    """The weightings that make every observation's pieces add up to the whole, simplest first."""
    return (w for w in proposed if all(seen.fits(w, epsilon) for seen in observations))


def first_of_best(fitting: Sequence[Weighting], seen: Sequence[Observation]) -> Weighting:
    """The simplest of the weightings that fit about as well as any.

    Where outputs have 16 bits, much is allowed for rounding, and a simple weighting may fit that
    is wrong by a few percent.
    """
    finite = [one for one in seen if math.isfinite(one.whole) and one.whole]
    errors = [max((one.error(weighting) for one in finite), default=0.0) for weighting in fitting]
    allowed = AS_GOOD * min(errors) + RELATIVE
    return next(one for one, error in zip(fitting, errors) if error <= allowed)


def weigh_values(value: Value, batch: Batch, num_classes: int, *, outside: bool) -> Table | None:
    """The weight of each target value, by what it adds to a mean over two rows.

    With S and W of a row a and a row b, the loss of both is (S_a + S_b) / (W_a + W_b); so W_b / W_a
    is (L_a − L_ab) / (L_ab − L_b). Each row is taken twice: some losses refuse a single one.

    Args:
        outside: whether values that are no class may be tried.
    """
    targets = batch.targets
    if not isinstance(targets, torch.Tensor) or not is_classes(targets) or batch.num_rows < 2:
        return None
    pair = batch.pick(torch.tensor([0, 0, 1, 1]))
    known = [v for v in targets.unique().tolist() if v >= 0]
    tried = [*range(min(max(num_classes, *(v + 1 for v in known), 1), MOST_CLASSES))]
    tried += [value for value in (IGNORED, -1) if outside]
    for reference in known:
        first = value(filled(pair, reference, reference).rows(slice(0, 2)))
        if not math.isfinite(first) or first == 0:
            continue
        table: Table = {}
        for each in tried:
            try:
                both = filled(pair, reference, each)
                alone = value(both.rows(slice(2, 4)))
                table[each] = ratio(first, alone, value(both))
            except Exception:  # no class of this loss
                continue
        return table
    return None


def filled(pair: Batch, first: int, second: int) -> Batch:
    """Two rows twice, with one target value each."""
    targets = pair.targets.clone()
    targets[:2], targets[2:] = first, second
    return pair.exchange(pair.targets, targets)


def ratio(first: float, second: float, both: float) -> float:
    """The second row's weight where the first's is 1."""
    if not math.isfinite(second):
        return 0.0
    if both == second:
        return 1.0
    found = (first - both) / (both - second)
    return round(found, 3) if abs(found - round(found, 3)) < 1e-5 else found
