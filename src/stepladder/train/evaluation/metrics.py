"""Metrics of an evaluation: each has one value, over all rows of all ranks.

[Note: a mean of metrics is no metric] An F1 score or an AUC of a whole set is not the mean of those
of its batches. So a function is called once, with the outputs and targets of all rows. An object
with `update`, `compute` and `reset`, as torchmetrics has them, is updated with each micro-batch of
its rank and combines the ranks itself; one that cannot is given all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.errors import DataError, StepladderError, first_line
from stepladder.plan.layout import DATA
from stepladder.world import World

from .collect_rows import describe, on_host
from .structure import take_apart

PROTOCOL = ("update", "compute", "reset")
REMEDY = "Give a function of (outputs, targets), or an object with update, compute and reset."

Metric = Any  # a function of (outputs, targets), or an object with `update`, `compute` and `reset`


@dataclass(slots=True)
class UpdatedMetric:
    """An object that is given one micro-batch after the other."""

    name: str
    metric: Any
    device: torch.device  # where it takes outputs

    def take(self, outputs: Any, targets: Any, rows: int) -> None:
        given = (moved(outputs, self.device), moved(targets, self.device))
        call_metric(self.name, self.metric.update, *given)

    def value(self) -> Any:
        return read_value(self.name, call_metric(self.name, self.metric.compute))


@dataclass(slots=True)
class Metrics:
    """The metrics that somebody asked for, by how they are computed."""

    world: World
    updated: list[UpdatedMetric] = field(default_factory=list)
    whole: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)  # of all rows at once

    @classmethod
    def read(cls, given: Any, world: World) -> Metrics:
        if not isinstance(given, Mapping):
            problem = f"a {type(given).__name__} does not name them"
            raise DataError("metrics", problem, 'Give a dict, such as {"accuracy": accuracy}.')
        made = cls(world)
        for name, metric in given.items():
            check_metric(name, metric)
            if not is_object(metric):
                made.whole[name] = metric
            elif combines_ranks(metric):
                made.updated.append(UpdatedMetric(name, metric, world.device))
            elif world.layout.data_ranks == 1:
                made.updated.append(UpdatedMetric(name, metric, torch.device("cpu")))
            else:
                made.whole[name] = partial(update_once, metric)
        return made

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A context in which objects start anew and know whom to combine with; reset after it."""
        with ExitStack() as stack:
            # Made on all ranks together, also on those that see no outputs.
            group = self.world.group(*DATA) if self.world.mesh is not None else None
            for one in self.updated:
                stack.enter_context(among(one.metric, group, one.device))
            yield

    def of_all_rows(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """The values of metrics that are computed from all rows."""
        host, several = torch.device("cpu"), len(self.whole) > 1
        values = {}
        for name, metric in self.whole.items():
            given = outputs, targets
            if several:  # one may write into what it is given
                given = moved(outputs, host), moved(targets, host)
            values[name] = read_value(name, call_metric(name, metric, *given))
        return values


def check_metric(name: Any, metric: Metric) -> None:
    if not isinstance(name, str) or name == "loss":
        problem = f"{name!r} is not a name for a metric: the result has the loss under 'loss'"
        raise DataError("metrics", problem, "Use another word.")
    if isinstance(metric, type):
        kind, remedy = metric.__name__, f"Give one of its objects: {metric.__name__}(...)."
        raise DataError(f"metrics.{name}", f"{kind} is a class", remedy)
    if not is_object(metric) and not callable(metric):
        raise DataError(f"metrics.{name}", f"{metric!r} cannot be computed", REMEDY)


def is_object(metric: Metric) -> bool:
    return all(callable(getattr(metric, name, None)) for name in PROTOCOL)


def members(metric: Metric) -> list[Any]:
    """A metric and those inside it: a collection has several, a wrapper another."""
    return list(metric.modules()) if isinstance(metric, nn.Module) else [metric]


def combines_ranks(metric: Metric) -> bool:
    """Whether it adds up over a group of ranks what it was given on each, as torchmetrics does."""
    return any(hasattr(one, "process_group") for one in members(metric))


@contextmanager
def among(metric: Metric, group: dist.ProcessGroup | None, device: torch.device) -> Iterator[None]:
    """A context in which a metric is new, on a device, and combines the ranks of a group."""
    found = [one for one in members(metric) if hasattr(one, "process_group")]
    before = [one.process_group for one in found]
    home = next((one.device for one in found if hasattr(one, "device")), None)
    metric.reset()
    if home is not None:
        metric.to(device)
    for one in found if group is not None else ():
        one.process_group = group
    try:
        yield
    finally:
        for one, known in zip(found, before):
            one.process_group = known
        metric.reset()
        if home is not None:
            metric.to(home)


def update_once(metric: Metric, outputs: Any, targets: Any) -> Any:
    """The value of an object that is given all rows together."""
    metric.reset()
    metric.update(outputs, targets)
    value = metric.compute()
    metric.reset()
    return value


def call_metric(name: str, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except StepladderError:
        raise
    except Exception as error:  # a user's own code may raise anything
        shapes = " and ".join(describe(take_apart(one)[1]) for one in given)
        raised = f"raised {type(error).__name__} ({first_line(error)})"
        raise DataError(
            f"metrics.{name}",
            f"{raised}, given outputs and targets of shape {shapes}" if given else raised,
            "The cause, which this error has, says where.",
        ) from error


def moved(value: Any, device: torch.device) -> Any:
    """Outputs or targets where a metric takes them."""
    structure, tensors = take_apart(value)
    if device.type == "cpu":
        return structure.build(on_host(tensor) for tensor in tensors)
    return structure.build(tensor.to(device) for tensor in tensors)


def read_value(name: str, value: Any) -> Any:
    """A metric's value on the host: a float, a tensor, or several of them by name."""
    if isinstance(value, Mapping):
        return {key: read_value(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Tensor | np.ndarray):
        found = torch.as_tensor(value).detach().cpu()
        return found.item() * 1.0 if found.numel() == 1 else found
    raise DataError(
        f"metrics.{name}",
        f"returned a {type(value).__name__}, which is no number",
        "Return a number, a tensor, or a dict of them.",
    )
