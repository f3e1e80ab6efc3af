"""An optimizer that is given as code: an instance, its class, or a function of parameters.

A run's optimizer updates what this rank owns of each parameter, and that exists only once the
module has been taken up the ladder. A class or a function is called then. An instance stays the
same object, so that a scheduler or a hook on it goes on working: its groups are given the rank's
parameters, and what it already remembers is laid out like them.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import PlanError, first_line
from stepladder.plan import Optimizer
from stepladder.plan.optimizer import PYTHON
from stepladder.rungs import ParameterShard
from stepladder.seam.gradient_hooks import copy_step_hooks
from stepladder.train.checkpointing.sharded_state import with_plain

from .build_optimizer import rate_of_group
from .group_settings import plain_settings
from .lay_out_state import lay_out
from .loose_state import loose_state

Parameters = Sequence[nn.Parameter]
UNKNOWN_STATE = 2  # tensors for a parameter, as Adam's, where no trial can tell


@dataclass(frozen=True, slots=True)
class GivenOptimizer:
    """An optimizer as code, and how to have it for other parameters."""

    name: str  # of its class or function
    make: Callable[[list[nn.Parameter]], Any] | None  # None: an instance
    instance: torch.optim.Optimizer | None = None
    names: tuple[tuple[str, ...], ...] = ()  # of the instance's parameters, by group

    def like(
        self, parameters: Parameters, group: int = 0, *, hooked: bool = False
    ) -> torch.optim.Optimizer:
        """An optimizer of this kind for other parameters, with one group's settings.

        Args:
            hooked: with the hooks around an instance's step, which may change an update.
        """
        if self.instance is None:
            return self.made(parameters)
        made = bare_copy(self.instance)
        if hooked:
            copy_step_hooks(self.instance, made)
        chosen = self.instance.param_groups[group]
        made.param_groups = [{**chosen, "params": list(parameters)}]
        made.state.update(copy.deepcopy(loose_state(self.instance)))
        for parameter in parameters:
            if begun := begun_state(self.instance, chosen["params"], parameter):
                made.state[parameter] = begun
        return made

    def made(self, parameters: Parameters) -> torch.optim.Optimizer:
        """What the class or the function makes of these parameters."""
        assert self.make is not None
        try:
            made = self.make(list(parameters))
        except Exception as error:
            raise PlanError(
                "optimizer",
                f"{self.name}(parameters) raised {type(error).__name__}: {first_line(error)}",
                what_it_needs(self.make, self.name, error),
            ) from error
        if not is_optimizer(made):
            problem = f"{self.name}(parameters) returned {type(made).__name__}, not an optimizer"
            raise PlanError("optimizer", problem, "Return a torch.optim.Optimizer.")
        check_settings(made)
        known = {id(parameter) for parameter in parameters}
        if any(id(p) not in known for group in made.param_groups for p in group["params"]):
            problem = f"{self.name} was given parameters and made an optimizer of others"
            raise PlanError(
                "optimizer", problem, "Use its argument: lambda p: RMSprop(p, lr=1e-3)."
            )
        return made

    def for_trial(self) -> GivenOptimizer:
        """The same for a run on a copy of the module: an instance is copied, with what it knows."""
        if self.instance is None:
            return self
        copied = bare_copy(self.instance)
        copied.param_groups = [{**group} for group in self.instance.param_groups]
        copied.state.update({p: copy.deepcopy(kept) for p, kept in self.instance.state.items()})
        return replace(self, instance=copied)

    def build(self, shards: Mapping[str, ParameterShard], lr: float) -> torch.optim.Optimizer:
        """The optimizer of a run, for what this rank owns.

        Args:
            shards: by the first name of each parameter.
            lr: the top rate of the run, of which groups have shares.
        """
        if self.instance is None:
            owned = [shard.owned for shard in shards.values()]
            # A pipeline stage may have no trainable parameter; torch's optimizers need one.
            built = self.made(owned or [nn.Parameter(torch.empty(0))])
        else:
            built = self.instance
            lay_out(built, self.names, shards)
        for index, group in enumerate(built.param_groups):
            given, top = group["lr"], float(group["lr"])
            group |= rate_of_group(top, top / lr if lr else 1.0, f"group {index}")
            if isinstance(given, Tensor):  # which its owner may write into
                group |= {"lr": given, "own_lr": True}
            group["as_given"] = plain_settings(group)
        return built


def words_of_given(given: GivenOptimizer) -> Optimizer:
    """How a plan writes it: its class, its rate, and how much it keeps for a parameter."""
    small = nn.Parameter(torch.ones(4, 3))
    one = given.like([small])
    refuse_closures(one, given.name)
    groups = one.param_groups if given.instance is None else given.instance.param_groups
    rates = [float(group["lr"]) for group in groups]
    lr = next((rate for rate in rates if rate), 0.0)
    return Optimizer(f"{PYTHON}{given.name}", lr=lr, state=count_state(one, small))


def count_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> int:
    """Tensors as large as the parameter that it keeps for it."""
    kept = state_after_step(optimizer, parameter)
    if kept is None:
        return UNKNOWN_STATE
    return sum(isinstance(one, Tensor) and one.shape == parameter.shape for one in kept.values())


def keys_of_state(optimizer: torch.optim.Optimizer) -> set[str]:
    """What it keeps for matrices and vectors from its first step on, as a checkpoint names it."""
    found: set[str] = set()
    for shape in ((4, 3), (4,)):
        small = nn.Parameter(torch.ones(shape))
        like = GivenOptimizer(name_of(optimizer), None, optimizer).like([small])
        found |= set(with_plain(state_after_step(like, small) or {}, ""))
    return found


def state_after_step(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter
) -> dict[str, Any] | None:
    """What one step leaves; None where it fails, as an optimizer of convolutions alone would."""
    parameter.grad = torch.ones_like(parameter)
    try:
        optimizer.step()
    except Exception:
        return None
    return dict(optimizer.state.get(parameter, {}))


def what_it_needs(make: Any, name: str, error: Exception) -> str:
    """The way out where a class or a function made no optimizer of a list of parameters."""
    if not is_class(make):
        return f"{name} is given a list of parameters: lambda p: torch.optim.RMSprop(p, lr=1e-3)."
    if isinstance(error, TypeError):  # of its arguments
        return f"Give what it needs: functools.partial({name}, lr=1e-3)."
    picked = f"lambda p: {name}([one for one in p if one.dim() == 2])"
    return (
        f"Where it takes only some parameters, pick them: {picked}; others then stay as they are."
    )


def is_class(given: Any) -> bool:
    """Whether it is a class, or a functools.partial of one."""
    while hasattr(given, "func"):
        given = given.func
    return isinstance(given, type)


def is_optimizer(thing: Any) -> bool:
    """Whether it is an optimizer as torch's are, by class or by what it has."""
    if isinstance(thing, type):
        return False
    has = (hasattr(thing, name) for name in ("param_groups", "state", "step"))
    return isinstance(thing, torch.optim.Optimizer) or all(has)


def name_of(given: Any) -> str:
    """The class of an optimizer, or what a class or a function is called, without spaces."""
    if is_optimizer(given):
        return type(given).__name__
    while hasattr(given, "func"):  # of functools.partial
        given = given.func
    name = getattr(given, "__name__", type(given).__name__)
    return "function" if name == "<lambda>" else str(name)


def check_settings(optimizer: torch.optim.Optimizer) -> None:
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        if "lr" not in group:
            problem = f"{name} has groups of parameters without 'lr'"
            raise PlanError("optimizer", problem, "Keep the learning rate there, as torch's do.")
        if not 0 <= float(group["lr"]) < math.inf:
            problem = f"the learning rate of {name} is {float(group['lr'])}"
            raise PlanError("optimizer", problem, "Give it a finite number of 0 or more.")
    for word, value in vars(optimizer).items():
        if is_optimizer(value):
            raise PlanError(
                "optimizer",
                f"{name} holds another optimizer in '{word}', whose state nobody would save",
                "Write it as one optimizer that keeps all it needs in its own state.",
            )


def refuse_closures(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Refuse one whose step computes the loss itself, as often as it likes."""
    required = [
        word
        for word, argument in inspect.signature(optimizer.step).parameters.items()
        if argument.default is inspect.Parameter.empty
        and argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    ]
    if required:
        problem = f"{name}.step needs '{required[0]}', and a run computes gradients once a step"
        raise PlanError("optimizer", problem, "Use an optimizer whose step() needs nothing.")


def bare_copy(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The same optimizer without parameters, state and hooks, whose steps leave it alone."""
    made = copy.copy(optimizer)  # torch leaves out hooks, and whatever a class has of its own
    # Parameters that it holds elsewhere too are not copied with what holds them.
    memo = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    for name, value in vars(optimizer).items():
        if name != "step":  # which a scheduler wraps, and would be that of the original
            vars(made).setdefault(name, copied(value, memo))
    made.state, made.param_groups = defaultdict(dict), []
    return made


def copied(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # a lock, a file, a generator of Python
        return value


def begun_state(
    optimizer: torch.optim.Optimizer, known: Iterable[nn.Parameter], parameter: nn.Parameter
) -> dict[str, Any]:
    """State for a new parameter where an optimizer makes it at once, as Adagrad does."""
    like = next((p for p in known if optimizer.state.get(p) and p.numel()), None)
    if like is None:
        return {}
    return {
        key: torch.full_like(parameter, value.flatten()[0].item())
        if isinstance(value, Tensor) and value.shape == like.shape
        else copy.deepcopy(value)
        for key, value in optimizer.state[like].items()
    }
