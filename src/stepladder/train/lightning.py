"""A Lightning module as it is: its training_step is the loss, its configure_optimizers the words.

Nothing of Lightning is imported or inherited. What is trained holds the very same parts under the
same names; before each pass it lends them to the Lightning module, whose code then finds slices,
cuts and stand-ins where a rung put them. Each sample counts alike, as in Lightning: a training_step
returns one mean and does not say over how many targets.

`self.log` keeps the last value of each name; what only a Trainer has is not there.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data import iter_tensors
from stepladder.errors import DataError, ModelError, PlanError
from stepladder.plan import Optimizer, Plan, Rate
from stepladder.plan.optimizer import Group
from stepladder.seam.modules import state_of

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
    optimizer: str | Optimizer | None = None,
    clip: float | None = None,
    rate: str | Rate | None = None,
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
        optimizer: text that replaces configure_optimizers.
        clip: the Trainer's gradient_clip_val.
        rate: text for the schedule, which a scheduler cannot be turned into.
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
    if not getattr(module, "automatic_optimization", True):
        problem = f"{type(module).__name__} takes its steps by hand (automatic_optimization=False)"
        raise ModelError("training_step", problem, "Have it return the loss instead.")
    if own := own_hooks(module):
        problem = f"of {type(module).__name__} would not be called: no Trainer takes the steps"
        raise ModelError(", ".join(own), problem, "Leave it out, or do it in training_step.")
    if optimizer is None:
        chosen = optimizer_of(module, scheduled=rate is not None)
    else:
        chosen = Optimizer.parse(optimizer) if isinstance(optimizer, str) else optimizer
    if clip is not None:
        chosen = chosen.change([f"clip={clip}"])
    given = None if sample is None else {WHOLE: sample}
    return climb(
        Stepped(module), optimizer=chosen, plan=plan, sample=given, rate=rate or "constant",
        seed=seed, device=device, nonfinite=nonfinite, exact=exact,
        timeout_seconds=timeout_seconds,
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

    def forward(self, *parts: Any, batch: Any = None) -> Tensor:
        if parts:
            raise DataError(
                "batch",
                "a training_step reads whole samples and was given a part of one",
                f"Take batches from run.batches, or give step {{'{WHOLE}': batch}}.",
            )
        self.lend(batch)
        index = (self.passes,) if self.takes_index else ()
        self.passes += 1
        made = self.inner.training_step(batch, *index)
        if isinstance(made, Mapping):
            if "loss" not in made:
                problem = f"returns {', '.join(map(str, made))} and no loss"
                raise ModelError("training_step", problem, "Return it under the key 'loss'.")
            return made["loss"]
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


def optimizer_of(module: Any, *, scheduled: bool) -> Optimizer:
    """The words for what configure_optimizers returns; refused where there are none."""
    made, scheduler = apart(module.configure_optimizers())
    if scheduler and not scheduled:
        problem = f"{type(module).__name__} has a scheduler, which is code"
        remedy = "Say it in words: rate='cosine warmup=100 steps=1000'."
        raise PlanError("configure_optimizers", problem, remedy)
    if type(made) not in KINDS:
        problem = f"returned {type(made).__name__}, which has no words"
        known = ", ".join(kind.__name__ for kind in KINDS)
        raise PlanError("configure_optimizers", problem, f"One of {known}, or give optimizer=.")
    return words_of(made, {p: name for name, p in module.named_parameters()})


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
    return made, scheduler


def words_of(made: torch.optim.Optimizer, names: dict[Tensor, str]) -> Optimizer:
    """A torch optimizer's settings; parameters whose rate or decay differ are named one by one."""
    groups = made.param_groups
    for key in UNKNOWN:
        if any(group.get(key) for group in groups):
            problem = f"{type(made).__name__} with {key} has no words"
            raise PlanError("configure_optimizers", problem, "Leave it out, or give optimizer=.")
    left = [n for p, n in names.items() if p.requires_grad and not any_has(groups, p)]
    if left:
        problem = f"leaves out {len(left)} trainable parameters, such as '{left[0]}'"
        raise PlanError("configure_optimizers", problem, "Freeze them: requires_grad_(False).")
    largest = Counter({index: len(group["params"]) for index, group in enumerate(groups)})
    base = groups[largest.most_common(1)[0][0]]
    others = [group for group in groups if group is not base]
    for key in ("betas", "eps", "momentum"):
        if any(group.get(key) != base.get(key) for group in others):
            problem = f"its groups differ in {key}, and only rate and decay may"
            raise PlanError("configure_optimizers", problem, "Give optimizer= in words.")
    lr = float(base["lr"])
    known = {key: base[key] for key in ("betas", "eps", "momentum") if key in base}
    rules = tuple(
        Group(names[parameter], float(group["lr"]) / (lr or 1.0), float(group["weight_decay"]))
        for group in others
        for parameter in group["params"]
    )
    name = "adamw" if base.get("decoupled_weight_decay") else KINDS[type(made)]
    return Optimizer(name, lr=lr, wd=float(base["weight_decay"]), groups=rules, **known)


def any_has(groups: list[dict[str, Any]], parameter: Tensor) -> bool:
    return any(parameter is one for group in groups for one in group["params"])
