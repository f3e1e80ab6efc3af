"""Loss, metrics and predictions over batches, by the module of a run and without learning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from stepladder.data import Batch
from stepladder.errors import DataError, StepladderError, first_line
from stepladder.model.training_mode import evaluating
from stepladder.rungs import averaged_buffers, float32_matmul_mode, is_out_of_memory
from stepladder.rungs.observe_outputs import without_loss
from stepladder.train.data_loader.shard_loader import distributed_sampler
from stepladder.train.engine import Engine
from stepladder.train.feed import Feed
from stepladder.train.health.batch_errors import explain_batch
from stepladder.train.health.out_of_memory import explain_evaluation
from stepladder.train.step_batch import Rows, check_series

from .between_ranks import first_that, gather_to, send_to_all
from .collect_rows import put_in_order
from .evaluation import Evaluation
from .metrics import Metric, Metrics
from .observer import AllRows, Keep, Observer, Taker
from .structure import take_apart

NO_SAMPLER = "Leave it out: each rank then takes its rows of every batch."


def mean_loss(run: Engine, data: Iterable[Any], rows: Rows | None) -> float:
    """The mean loss over the valid targets of these batches."""
    check_data(data)
    with without_learning(run):
        return evaluate_batches(run, data, rows)


def evaluate_metrics(
    run: Engine,
    data: Iterable[Any],
    metrics: Mapping[str, Metric],
    keep: Keep | None,
    rows: Rows | None,
) -> Evaluation:
    """The mean loss, and metrics over all rows; every rank has the same."""
    check_data(data)
    refuse_repeated_rows(data)
    asked = Metrics.read(metrics, run.world)
    all_rows = AllRows()
    takers: list[Taker] = [*asked.updated, *([all_rows] if asked.whole else [])]
    with asked.in_use(), without_learning(run):
        observer = Observer(run.plan, run.world, checked(keep), takers)
        loss = evaluate_batches(run, data, rows, observer)
        values = compute(run, asked, observer, all_rows)
    return Evaluation(loss, {name: values[name] for name in metrics})


def compute(run: Engine, asked: Metrics, observer: Observer, rows: AllRows) -> dict[str, Any]:
    """Every metric's value, on all ranks."""
    sees = run.climbed.forward_backward.has_outputs
    # Ranks without a single row take part too: those of one group combine what each was given.
    values = {one.name: one.value() for one in asked.updated} if sees else {}
    root = first_that(run.world, bool(observer.numbers))
    found = gather_whole(run, observer, rows, root) if asked.whole else None
    problem: StepladderError | None = None
    if found:
        outputs, targets = rows.outputs.build(found[0]), rows.targets.build(found[1])
        try:
            values |= asked.of_all_rows(outputs, targets)
        except StepladderError as refused:
            problem = refused
    values, shared = send_to_all(run.world, (values, problem), root)
    if shared is not None:  # on every rank, so that none waits for one that stopped
        raise problem or shared
    return values


def predict(run: Engine, data: Iterable[Any], keep: Keep | None, rows: Rows | None) -> Any:
    """What the module returns for all rows, in their order; every rank has all of it."""
    check_data(data)
    refuse_dealt_rows(data)
    all_rows = AllRows(with_targets=False)
    with without_learning(run), without_loss(run.climbed.forward_backward):
        observer = Observer(run.plan, run.world, checked(keep), [all_rows])
        evaluate_batches(run, data, rows, observer)
        root = first_that(run.world, bool(observer.numbers))
        found = gather_whole(run, observer, all_rows, root)
        structure = all_rows.outputs.structure
        # Sent only where needed: a class of a notebook's cannot be.
        lacking = first_that(run.world, structure is None) < run.world.place.num_ranks
        sent = structure if lacking else None
        tensors, shared = send_to_all(run.world, (found and found[0], sent), root)
        return (structure or shared).build(iter(tensors))


def gather_whole(
    run: Engine, observer: Observer, rows: AllRows, root: int
) -> tuple[list[Tensor], list[Tensor]] | None:
    """The tensors of outputs and targets over all rows, on one rank; None on others."""
    given = gather_to(run.world, observer.rank_rows(rows), root)
    parts = [part for part in given if part is not None]
    if not parts:
        return None
    outputs, targets = put_in_order(parts)
    return rows.outputs.finish(outputs), rows.targets.finish(targets)


def evaluate_batches(
    run: Engine, data: Iterable[Any], rows: Rows | None, observer: Observer | None = None
) -> float:
    """The mean loss of all batches, whose outputs the observer is given."""
    total, count, seen = 0.0, 0.0, False
    forward_backward = run.climbed.forward_backward
    for given in run.shard(data, rows):
        batch = run.own_batch(given, rows).to(run.world.device, non_blocking=True)
        if observer:
            observer.start(batch)
        loss, weight = evaluate_batch(run, batch, observer)
        total, count, seen = total + loss.item() * weight, count + weight, True
    forward_backward.gradient_sync.after_evaluation()
    if not seen:
        raise no_batches(data, run.position)
    return total / count if count else math.nan  # a mean over no target


def evaluate_batch(run: Engine, batch: Batch, observer: Observer | None) -> tuple[Tensor, float]:
    """A batch's loss and its weight."""
    forward_backward = run.climbed.forward_backward
    try:
        forward_backward.settle_loss(batch)
        return forward_backward.evaluate(batch, observer)
    except Exception as error:
        if refused := explain_batch(error, run.module, batch):
            raise refused from error
        if not is_out_of_memory(error):
            raise
    # Outside the handler, whose traceback keeps the failed pass's activations alive.
    raise explain_evaluation(run, batch)


def no_batches(data: Any, position: int) -> DataError:
    remedy = "Give at least one batch."
    if isinstance(data, Feed):
        remedy = f"run.batches goes on from the run's sample {position}: give a DataLoader."
    return DataError("batches", "there are none to evaluate", remedy)


@contextmanager
def without_learning(run: Engine) -> Iterator[None]:
    """A context in which the run's module evaluates, as all steps so far have left it."""
    run.agree_on_health()
    run.look_back()
    with (
        evaluating(run.climbed.state),
        averaged_buffers(run.climbed.state, run.world),
        run.world.explain_hangs(),
        run.world.during_step(),
        float32_matmul_mode(run.plan.precision, run.world.device),
    ):
        yield


def check_data(data: Any) -> None:
    """Refuse what is no series of batches, or never ends."""
    check_series(data, "Give DataLoader(data, batch_size=32).")
    if isinstance(data, Feed) and data.endless:
        raise DataError(
            "batches",
            "run.batches goes on epoch after epoch, and an evaluation would never end",
            "Pass it stop=, or give a DataLoader.",
        )


def refuse_repeated_rows(data: Any) -> None:
    """Refuse a sampler that repeats samples, which a metric would count twice."""
    sampler = distributed_sampler(data) if isinstance(data, DataLoader) else None
    if sampler is None:
        return
    samples: Any = sampler.dataset
    if (more := sampler.total_size - len(samples)) > 0:
        raise DataError(
            "DistributedSampler",
            f"repeats {more} of {len(samples)} samples so that {sampler.num_replicas} ranks have "
            "as many, and a metric would count them twice",
            NO_SAMPLER,
        )


def refuse_dealt_rows(data: Any) -> None:
    """Refuse a sampler after which nobody knows the order of the data."""
    sampler = distributed_sampler(data) if isinstance(data, DataLoader) else None
    if sampler is not None and sampler.num_replicas > 1:
        raise DataError(
            "DistributedSampler",
            f"deals samples out to {sampler.num_replicas} ranks, and predictions would not be in "
            "the order of the data",
            NO_SAMPLER,
        )


def checked(keep: Any) -> Keep:
    """What picks from outputs, whose failures are reported in one line."""
    if keep is None:
        return lambda outputs: outputs
    if not callable(keep):
        problem = f"{keep!r} is not a function of outputs"
        raise DataError("keep", problem, "Give one, such as lambda outputs: outputs.argmax(-1).")

    def pick(outputs: Any) -> Any:
        try:
            kept = keep(outputs)
        except Exception as error:  # a user's own code may raise anything
            raised = f"raised {type(error).__name__}: {first_line(error)}"
            raise DataError(
                "keep", raised, "The cause, which this error has, says where."
            ) from error
        if not take_apart(kept)[1]:
            problem = f"returned a {type(kept).__name__}, which holds no tensor"
            raise DataError("keep", problem, "Return a tensor, or a nest of them.")
        return kept

    return pick
