"""A Lightning module as it is: its training_step is the loss, and configure_optimizers the rest.

Nothing of Lightning is imported or inherited. What is trained holds the very same parts under the
same names; before each pass it lends them to the Lightning module, whose code then finds slices,
cuts and stand-ins where a rung put them. Each sample counts alike, as in Lightning: a training_step
returns one mean and does not say over how many targets.

`self.log` keeps the last value of each name; what only a Trainer has is not there.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from stepladder.data import iter_tensors
from stepladder.errors import ModelError, PlanError
from stepladder.plan import Optimizer, Plan, Rate
from stepladder.plan.optimizer import Group
from stepladder.seam.modules import state_of
from stepladder.train.optimizer.given_optimizer import is_optimizer

from .run import Run
from .start import climb

KINDS = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
UNKNOWN = ("amsgrad", "maximize", "nesterov", "dampening")  # settings that words have no place for
HOOKS = (  # a Trainer's calls that may change what a step computes
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "on_after_backward",
    "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer",
    "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_start", "optimizer_step",
    "optimizer_zero_grad", "transfer_batch_to_device",
)  # fmt: skip
WHOLE = "batch"  # the name under which a sample goes through a run in one piece


def from_lightning(
    module: Any,
    *,
    optimizer: str | Optimizer | torch.optim.Optimizer | Callable[..., Any] | None = None,
    clip: float | None = None,
    rate: str | Rate | Callable[..., Any] | LRScheduler | None = None,
    plan: str | Plan = "auto",
    sample: Any = None,
    seed: int = 0,
    device: str = "auto",
    nonfinite: str = "stop",
    exact: bool = False,
    timeout_seconds: float = 600,
) -> Run:
    """Take a Lightning module up the ladder: `climb` for a module with a training_step.

    Args:
        optimizer: in place of configure_optimizers, as in `climb`.
        clip: the Trainer's gradient_clip_val.
        rate: in place of the scheduler of configure_optimizers, as in `climb`.
        plan, seed, device, nonfinite, exact, timeout_seconds: as in `climb`.
        sample: one batch, as training_step takes it.

    >>> import torch, stepladder as sl
    >>> class Classifier(torch.nn.Module):  # stands for a lightning.LightningModule
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def training_step(self, batch):
    ...         x, y = batch
    ...         return torch.nn.functional.cross_entropy(self.layer(x), y)
    ...     def configure_optimizers(self):
    ...         return torch.optim.AdamW(self.parameters(), lr=1e-3)
    >>> run = sl.from_lightning(Classifier(), plan="fp32")
    >>> str(run.plan.optimizer).split()[0]
    'adamw'
    """
    if not isinstance(module, nn.Module) or not hasattr(module, "training_step"):
        what = (
            f"the class {module.__name__}"
            if isinstance(module, type)
            else f"a {type(module).__name__}"
        )
        problem = f"{what} is not a module with a training_step"
        raise ModelError("module", problem, "Give a LightningModule; climb takes any other.")
    if not getattr(module, "automatic_optimization", True):
        problem = f"{type(module).__name__} takes its steps by hand (automatic_optimization=False)"
        raise ModelError("training_step", problem, "Have it return the loss instead.")
    if own := own_hooks(module):
        problem = f"of {type(module).__name__} would not be called: no Trainer takes the steps"
        raise ModelError(", ".join(own), problem, "Leave it out, or do it in training_step.")
    if optimizer is None:
        optimizer, scheduler = configured(module, scheduled=rate is not None)
        rate = scheduler if rate is None else rate
    given = None if sample is None else {WHOLE: sample}
    return climb(
        Stepped(module), optimizer=optimizer, clip=clip, plan=plan, sample=given,
        rate="constant" if rate is None else rate, seed=seed, device=device,
        nonfinite=nonfinite, exact=exact, timeout_seconds=timeout_seconds,
    )  # fmt: skip


def own_hooks(module: Any) -> list[str]:
    """The hooks that its author wrote, not Lightning."""
    found = []
    for name in HOOKS:
        home = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
        if home is not None and not home.__module__.startswith(("lightning", "pytorch_lightning")):
            found.append(name)
    return found


class Stepped(nn.Module):
    """A Lightning module's parts; their answer to a batch is its training_step's loss."""

    inner: Any  # the Lightning module
    whole_batch = WHOLE  # how it takes what a training_step does: see `ModuleInputs`

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.__dict__["inner"] = inner  # not a part: each parameter has one name
        vars(self).update(state_of(inner))
        self.logged: dict[str, Any] = {}
        self.passes = 0
        inner.log = self.log
        if "_trainer" in vars(inner):  # without one its global_step would be 0 for ever
            inner._trainer = NoTrainer(type(inner).__name__)
        self.takes_index = len(inspect.signature(inner.training_step).parameters) > 1

    def forward(self, batch: Any) -> Tensor:
        self.lend(batch)
        index = (self.passes,) if self.takes_index else ()
        self.passes += 1
        made = self.inner.training_step(batch, *index)
        if isinstance(made, Mapping):
            if "loss" not in made:
                problem = f"returns {', '.join(map(str, made))} and no loss"
                raise ModelError("training_step", problem, "Return it under the key 'loss'.")
            return made["loss"]
        if made is None:
            raise ModelError("training_step", "returns None and no loss", "Return the loss.")
        return made

    def lend(self, batch: Any) -> None:
        """Have the Lightning module find what stands here now."""
        vars(self.inner).update(state_of(self), training=self.training)
        if "_device" in vars(self.inner):  # its `device`, which only its own `to` would set
            self.inner._device = next(iter_tensors(batch)).device

    def log(self, name: str, value: Any, *how: Any, **named: Any) -> None:
        self.logged[name] = value.detach() if isinstance(value, Tensor) else value

    def samples_of(self, source: Any) -> Any:
        """A source whose samples go through a run in one piece."""
        return source if isinstance(source, Whole) else Whole(source)


class NoTrainer:
    """What stands where a Lightning module looks for its Trainer: every question is refused."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "owner":  # asked while it is copied
            raise AttributeError(name)
        problem = f"{self.owner} asks for its Trainer ({name}), and there is none"
        raise ModelError("training_step", problem, "Leave out what needs it.")


class Whole:
    """A source of samples that nobody shall tell into inputs and targets."""

    def __init__(self, source: Any) -> None:
        self.source = source
        if hasattr(source, "fetch"):
            self.fetch = self._fetch

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.source[index]
        return {WHOLE: tuple(sample) if isinstance(sample, list) else sample}

    def _fetch(self, indices: Any) -> dict[str, Any]:
        return {WHOLE: self.source.fetch(indices)}

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # not there yet while this is being unpickled
            raise AttributeError(name)
        return getattr(self.source, name)  # what else a source may offer


def configured(
    module: Any, *, scheduled: bool
) -> tuple[Optimizer | torch.optim.Optimizer, LRScheduler | None]:
    """What configure_optimizers returns: an optimizer, in words where there are any, and its
    scheduler, unless the schedule is given otherwise."""
    made, schedulers = apart(module.configure_optimizers())
    scheduler = None if scheduled or not schedulers else step_scheduler(module, schedulers)
    if scheduler is not None:
        return made, scheduler  # which sets the rates of this very object
    for group in made.param_groups:
        group["lr"] = group.pop("initial_lr", group["lr"])  # as before any scheduler
    return words_of(made, {p: name for name, p in module.named_parameters()}) or made, None


def step_scheduler(module: Any, given: Any) -> LRScheduler:
    """The one scheduler, where it takes a step after each of the optimizer's."""
    first = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given
    held = first if isinstance(first, Mapping) else {"scheduler": first}
    every = f"{held.get('frequency', 1)} {held.get('interval', 'epoch')}"
    if not isinstance(held.get("scheduler"), LRScheduler) or every != "1 step":
        problem = f"the scheduler of {type(module).__name__} takes a step every {every}"
        remedy = (
            "Return it with 'interval': 'step'; give rate='cosine warmup=100 steps=1000'; or give "
            "rate='constant' and have a scheduler of run.optimizer take its steps in your loop."
        )
        raise PlanError("configure_optimizers", problem, remedy)
    return held["scheduler"]


def apart(made: Any) -> tuple[Any, Any]:
    """The one optimizer and the schedulers, in whichever form they were returned."""
    scheduler: Any = None
    if isinstance(made, Mapping):
        made, scheduler = made.get("optimizer"), made.get("lr_scheduler")
    elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list):
        made, scheduler = made
    if isinstance(made, list | tuple):
        if len(made) != 1:
            problem = f"returned {len(made)} optimizers, and a run has one"
            raise PlanError("configure_optimizers", problem, "Give optimizer= in words.")
        made = made[0]
    if not is_optimizer(made):
        problem = f"returned {'None' if made is None else type(made).__name__}, and no optimizer"
        raise PlanError("configure_optimizers", problem, "Return one, or give optimizer= in words.")
    return made, scheduler


def words_of(made: torch.optim.Optimizer, names: dict[Tensor, str]) -> Optimizer | None:
    """A torch optimizer's settings; parameters whose rate or decay differ are named one by one.

    None where words cannot say it: the optimizer itself is used then, without fused kernels.
    """
    groups = made.param_groups
    if type(made) not in KINDS or any(group.get(key) for group in groups for key in UNKNOWN):
        return None
    if not all(any_has(groups, p) for p in names if p.requires_grad):
        return None
    largest = Counter({index: len(group["params"]) for index, group in enumerate(groups)})
    base = groups[largest.most_common(1)[0][0]]
    others = [group for group in groups if group is not base]
    shared = ("betas", "eps", "momentum")
    if any(group.get(key) != base.get(key) for group in others for key in shared):
        return None
    lr = float(base["lr"])
    known = {key: base[key] for key in shared if key in base}
    rules = tuple(
        Group(names[parameter], float(group["lr"]) / (lr or 1.0), float(group["weight_decay"]))
        for group in others
        for parameter in group["params"]
    )
    name = "adamw" if base.get("decoupled_weight_decay") else KINDS[type(made)]
    return Optimizer(name, lr=lr, wd=float(base["weight_decay"]), groups=rules, **known)


def any_has(groups: list[dict[str, Any]], parameter: Tensor) -> bool:
    return any(parameter is one for group in groups for one in group["params"])
