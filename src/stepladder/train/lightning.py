"""A Lightning module as it is: its training_step is the loss, and configure_optimizers the rest.

Nothing of Lightning is imported or inherited. What is trained holds the very same parts under the
same names; before each pass it lends them to the Lightning module, whose code then finds slices,
cuts and stand-ins where a rung put them. Each sample counts alike, as in Lightning: a training_step
returns one mean and does not say over how many targets.

`self.log` keeps the last value of each name; what only a Trainer has is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from stepladder.data import iter_tensors
from stepladder.errors import DataError, ModelError
from stepladder.model.call_module import call
from stepladder.plan import Optimizer, Plan, Rate
from stepladder.seam.modules import state_of
from stepladder.train.evaluation.evaluation import Evaluation
from stepladder.train.evaluation.metrics import Metric
from stepladder.train.evaluation.observer import Keep
from stepladder.train.optimizer.lightning_optimizer import configured

from .module_inputs import ModuleInputs
from .run import Run
from .start import climb
from .step_batch import Rows, as_batch

HOOKS = (  # a Trainer's calls that may change what a step computes
    "backward", "configure_gradient_clipping", "lr_scheduler_step", "on_after_backward",
    "on_after_batch_transfer", "on_before_backward", "on_before_batch_transfer",
    "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_start", "optimizer_step",
    "optimizer_zero_grad", "transfer_batch_to_device",
)  # fmt: skip
UNCALLED = (  # its other calls, whose place is the user's loop
    "configure_callbacks", "configure_model", "on_fit_end", "on_fit_start", "on_load_checkpoint",
    "on_predict_batch_end", "on_predict_end", "on_predict_epoch_end", "on_predict_start",
    "on_save_checkpoint", "on_test_batch_end", "on_test_end", "on_test_epoch_end", "on_test_start",
    "on_train_batch_end", "on_train_end", "on_train_epoch_end", "on_train_epoch_start",
    "on_train_start", "on_validation_batch_end", "on_validation_batch_start", "on_validation_end",
    "on_validation_epoch_end", "on_validation_epoch_start", "on_validation_start", "prepare_data",
    "setup", "teardown", "test_dataloader", "test_step", "train_dataloader", "val_dataloader",
    "validation_step",
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
    if own := own_hooks(module, HOOKS):
        problem = f"of {type(module).__name__} would not be called: no Trainer takes the steps"
        raise ModelError(", ".join(own), problem, "Leave it out, or do it in training_step.")
    if optimizer is None:
        optimizer, scheduler = configured(module, scheduled=rate is not None)
        rate = scheduler if rate is None else rate
    given = None if sample is None else {WHOLE: sample}
    run = climb(
        Stepped(module), optimizer=optimizer, clip=clip, plan=plan, sample=given,
        rate="constant" if rate is None else rate, seed=seed, device=device,
        nonfinite=nonfinite, exact=exact, timeout_seconds=timeout_seconds,
    )  # fmt: skip
    if dropped := own_hooks(module, UNCALLED):
        run.events.append(
            f"{type(module).__name__}: nobody calls its {', '.join(dropped)}, since there is no "
            "Trainer: do in your loop what they do"
        )
    return LightningRun(**{each.name: getattr(run, each.name) for each in fields(run)})


class LightningRun(Run):
    """A run of a Lightning module, whose predictions are those of its forward."""

    __slots__ = ()

    def predict(
        self, data: Iterable[Any], *, keep: Keep | None = None, rows: Rows | None = None
    ) -> Any:
        """As everywhere, of predict_step where the module has its own."""
        stepped: Any = self.module
        with stepped.predicting():
            return Run.predict(self, data, keep=keep, rows=rows)

    def evaluate(  # type: ignore[override]
        self,
        data: Iterable[Any],
        *,
        metrics: Mapping[str, Metric] | None = None,
        keep: Keep | None = None,
        rows: Rows | None = None,
    ) -> float | Evaluation:
        """The mean loss of training_step; it does not tell outputs from targets for metrics."""
        if metrics is not None:
            problem = "a training_step does not tell its outputs and targets"
            remedy = "Use run.predict(data), or sl.climb(module, loss=...) for its forward."
            raise DataError("metrics", problem, remedy)
        return Run.evaluate(self, data, keep=keep, rows=rows)  # type: ignore[call-overload]


def own_hooks(module: Any, names: Iterable[str]) -> list[str]:
    """The hooks of these that its author wrote, not Lightning."""
    found = []
    for name in names:
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
        self.predicts = False
        inner.log = self.log
        if "_trainer" in vars(inner):  # without one its global_step would be 0 for ever
            inner._trainer = NoTrainer(type(inner).__name__)

    def forward(self, batch: Any) -> Any:
        self.lend(batch)
        if self.predicts:
            return self.prediction(batch)
        self.passes += 1
        made = with_index(self.inner.training_step, batch, self.passes - 1)
        if isinstance(made, Mapping):
            if "loss" not in made:
                problem = f"returns {', '.join(map(str, made))} and no loss"
                raise ModelError("training_step", problem, "Return it under the key 'loss'.")
            return made["loss"]
        if made is None:
            raise ModelError("training_step", "returns None and no loss", "Return the loss.")
        return made

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """A context in which its answer is not the loss but what the Lightning module predicts."""
        self.predicts = True
        try:
            yield
        finally:
            self.predicts = False

    def prediction(self, batch: Any) -> Any:
        """What an own predict_step returns; else forward, of a batch's inputs without targets."""
        if own_hooks(self.inner, ("predict_step",)):
            return with_index(self.inner.predict_step, batch, 0)
        if not own_hooks(self.inner, ("forward",)):
            name = type(self.inner).__name__
            raise ModelError(name, "has no forward to predict with", "Define it, or predict_step.")
        return call(
            self.inner, ModuleInputs.of(self.inner, None).arrange(as_batch(batch, 0)).inputs
        )

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


def with_index(step: Callable[..., Any], batch: Any, index: int) -> Any:
    """A step's answer to a batch, whose number it may ask for."""
    asks = len(inspect.signature(step).parameters) > 1
    return step(batch, index) if asks else step(batch)


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
