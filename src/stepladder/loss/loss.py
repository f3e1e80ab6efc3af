"""How a module's output becomes one number, and over how many targets that number is a mean.

[Note: a mean of means is wrong] Micro-batches and ranks rarely hold equally many valid targets. So
whoever adds micro-batches up weighs each loss by the micro-batch's count over the whole global
batch's count. The sum is then exactly the loss of the global batch, however it was cut. What is
counted (valid targets, rows, class weights) depends on the loss, and is found out by a trial before
the first batch that is cut: see `find_weighting.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from stepladder.data import IGNORED, Batch
from stepladder.errors import DataError, ModelError, nearest
from stepladder.model import Anatomy, base_model

from .returned_loss import describe, one_number, read_terms
from .sliced_cross_entropy import is_sliced, sliced_cross_entropy
from .weighting import BY_SHIFTED_TARGETS, BY_TARGETS, Weighting

OF_TWO = "Give a name such as 'cross_entropy', or a function of (outputs, targets)."
SHIFTING = ("ForCausalLM", "LMHeadModel")  # they compare position i with label i + 1 themselves


@dataclass(frozen=True, slots=True)
class Loss:
    """How outputs and targets become a mean loss, and over how many targets it is one."""

    function: Callable[[Any, Any], torch.Tensor]
    shifted: bool = False  # the first label of every row is not a target
    kind: Literal["cross_entropy", "own", "other"] = "other"  # what rungs may know of the function
    known: bool = False  # whether the weighting is known to be right
    weighting: Weighting | None = None  # of pieces; None: by targets other than -100
    # What it takes of the outputs; raises where that is missing, also where no target is valid.
    takes: Callable[[Any], Any] = lambda outputs: outputs
    # What it reads besides the outputs, which needs a gradient also where no target is valid.
    parameters: Callable[[], tuple[torch.Tensor, ...]] = tuple
    # Of inputs and targets: the module and the loss compiled as one, where they are.
    with_module: Callable[[Any, Any], torch.Tensor] | None = None

    def mean(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The mean over this micro-batch's valid targets."""
        return self.mean_of(outputs, batch.targets)

    def mean_of(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self.split(outputs, targets)[0]

    def split(self, outputs: Any, targets: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The mean loss, and the terms that it is the sum of, if they have names."""
        found = self.function(outputs, targets)
        if self.kind == "other" and isinstance(found, Mapping):
            terms = read_terms(found)
            first, *others = terms.values()
            return sum(others, start=first), terms
        return one_number("loss", found), {}

    def weigh(self, batch: Batch) -> Batch:
        """The batch with what its rows weigh, computed where its tensors are."""
        if self.weighting is None or batch.weight_by_row is not None:
            return batch
        weights = (0.0,) * batch.num_rows if batch.idle else self.weighting.by_row(batch)
        return replace(batch, weight_by_row=weights)

    def count(self, batch: Batch) -> float:
        """What these rows weigh: the number of valid targets, unless the loss counts otherwise."""
        if self.weighting is None:
            return batch.valid - (batch.leading if self.shifted else 0)
        return sum(self.weigh(batch).weight_by_row or ())

    def tokens(self, batch: Batch) -> int:
        """Targets of these rows that count."""
        if self.weighting is None or self.weighting.counts_targets:
            return int(self.count(batch))
        return batch.valid

    @property
    def sums(self) -> bool:
        """Whether pieces are added up as they are."""
        return self.weighting is not None and self.weighting.sums

    @property
    def weighs_rows(self) -> bool:
        """Whether a row weighs the same however long it is."""
        return self.weighting is not None and (self.weighting.kind == "rows" or self.weighting.once)

    def weighted(self, weighting: Weighting | None) -> Loss:
        """This loss with the weighting that a trial found; None: with the one it has."""
        if weighting in (None, BY_TARGETS, BY_SHIFTED_TARGETS):  # counted when a batch is made
            shifted = self.shifted if weighting is None else weighting is BY_SHIFTED_TARGETS
            return replace(self, known=True, shifted=shifted)
        return replace(self, known=True, shifted=False, weighting=weighting)


# Of batches whose outputs alone are wanted, and which may have no targets.
NO_LOSS = Loss(lambda outputs, targets: torch.zeros(()), known=True)


def make_loss(loss: str | Callable[[Any, Any], torch.Tensor] | None, module: nn.Module) -> Loss:
    """A loss from a name, a function of (outputs, targets), or None for the module's own."""
    if loss is None:
        shifted = type(base_model(module)).__name__.endswith(SHIFTING)
        takes = partial(own_loss, module=module)
        return Loss(lambda outputs, targets: takes(outputs), shifted, "own", takes=takes)
    if isinstance(loss, str):
        if loss not in NAMED:
            raise ModelError("loss", f"'{loss}' is not a loss", nearest_loss(loss))
        kind: Literal["cross_entropy", "other"]
        kind = "cross_entropy" if loss == "cross_entropy" else "other"
        function = NAMED[loss]
        if loss == "cross_entropy":
            function = partial(cross_entropy, classes_last=has_classes_last(module))
        return Loss(function, kind=kind, known=True, takes=only_tensor)
    check_function(loss)
    return Loss(loss)


def check_function(loss: Any) -> None:
    """Refuse what cannot be called with outputs and targets; functions without a signature pass."""
    if not callable(loss):
        raise ModelError("loss", f"a {type(loss).__name__} is not a loss", OF_TWO)
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        remedy = f"Give an object of it: {loss.__name__}()."
        raise ModelError("loss", f"{loss.__name__} is a class of losses", remedy)
    try:
        known = signature(loss)
    except (TypeError, ValueError):  # of C, which has none
        return
    try:
        known.bind("outputs", "targets")
    except TypeError as refused:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise ModelError(
            "loss", f"{name}{known} cannot be called with two ({refused})", OF_TWO
        ) from refused


def own_loss(outputs: Any, module: nn.Module) -> torch.Tensor:
    """The loss inside a module's output, or the output itself when it is one number."""
    found = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
        found = outputs
    if found is None:
        raise ModelError(
            "loss",
            f"{type(module).__name__} returns {describe(outputs)} and no loss",
            "Give climb one: loss='cross_entropy', or a function of (outputs, targets).",
        )
    return found


def cross_entropy(
    outputs: Any, targets: torch.Tensor, classes_last: bool | None = None
) -> torch.Tensor:
    """torch's cross-entropy, over classes in the last dimension or, as torch has them, the second.

    Args:
        classes_last: where the shape allows both; None: that is refused.
    """
    logits, targets = only_tensor(outputs), only_target(targets)
    if is_sliced(logits):
        return sliced_cross_entropy(logits, targets)
    # In fp32 whatever the logits came in: the sum over a large vocabulary needs the bits.
    logits = logits.float()
    if targets.is_floating_point():  # a distribution over each row's classes
        if logits.dim() != 2 or logits.shape != targets.shape:
            raise other_targets(
                logits, targets, "classes are integers, and probabilities have the outputs' shape"
            )
        return functional.cross_entropy(logits, targets.float())
    targets = targets.long()
    last = logits.shape[:-1] == targets.shape
    second = logits.dim() > 2 and (*logits.shape[:1], *logits.shape[2:]) == tuple(targets.shape)
    if not second and logits.numel() != targets.numel() * logits.shape[-1]:
        raise other_targets(logits, targets, "a target needs one output for each class")
    if last and second and classes_last is None:
        raise ModelError(
            "loss",
            f"outputs {tuple(logits.shape)} for targets {tuple(targets.shape)} may have their "
            "classes in the second dimension or the last",
            "Pass loss=torch.nn.functional.cross_entropy if in the second, which it takes; else "
            "loss=lambda o, t: cross_entropy(o.flatten(0, -2), t.flatten()).",
        )
    if second and not (last and classes_last):
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED)
    return functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=IGNORED
    )


def other_targets(logits: torch.Tensor, targets: torch.Tensor, rule: str) -> DataError:
    return DataError(
        "targets",
        f"are {str(targets.dtype).removeprefix('torch.')} of shape {tuple(targets.shape)} for "
        f"outputs of shape {tuple(logits.shape)}; {rule}",
        "Give those, or use loss='squared_error' or a function of (outputs, targets).",
    )


def only_target(targets: Any) -> torch.Tensor:
    """The tensor that a named loss compares with the outputs."""
    if isinstance(targets, torch.Tensor):
        return targets
    raise DataError(
        "targets",
        f"a loss given by name takes one tensor, and the batch has {describe(targets)}",
        "Give a pair (inputs, targets) or a dict with labels; or pass loss= a function of "
        "(outputs, targets).",
    )


def only_tensor(outputs: Any) -> torch.Tensor:
    """The tensor that a named loss compares: the output, its logits, or the only one in it."""
    named = outputs.get("logits") if isinstance(outputs, Mapping) else None
    found = getattr(outputs, "logits", outputs) if named is None else named
    if isinstance(found, torch.Tensor):
        return found
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    nested = isinstance(outputs, Mapping | tuple | list)
    inside = [value for value in values if isinstance(value, torch.Tensor)] if nested else []
    if len(inside) != 1:
        raise ModelError(
            "loss",
            f"the module returns {describe(outputs)}, and a loss given by name takes one tensor",
            "Pass a function: loss=lambda outputs, targets: ..., which picks what it compares.",
        )
    return inside[0]


def has_classes_last(module: nn.Module) -> bool | None:
    """True for token models, whose logits have the vocabulary last; None where nobody knows."""
    config = getattr(base_model(module), "config", None)
    declared = isinstance(getattr(module, "anatomy", None), Anatomy)
    return True if declared or hasattr(config, "vocab_size") else None


def squared_error(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    outputs, targets = only_tensor(outputs), only_target(targets)
    if outputs.shape != targets.shape:
        if without_ones(outputs) != without_ones(targets):  # torch would broadcast one of them
            raise ModelError(
                "loss",
                f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} differ in "
                "shape",
                "Reshape one of them.",
            )
        outputs = outputs.reshape(targets.shape)
    return functional.mse_loss(outputs.float(), targets.float())


def without_ones(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of one row without dimensions of size 1, after the number of rows."""
    return (len(tensor) if tensor.dim() else 0, *(size for size in tensor.shape[1:] if size != 1))


NAMED: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}

# Words of the field for them, and for losses of torch's that have no name here; letters and digits.
SAME = {
    "ce": "cross_entropy",
    "xent": "cross_entropy",
    "mse": "squared_error",
    "l2": "squared_error",
}
TORCHS = {
    "l1": "l1_loss",
    "mae": "l1_loss",
    "smoothl1": "smooth_l1_loss",
    "huber": "huber_loss",
    "nll": "nll_loss",
    "kldiv": "kl_div",
    "bce": "binary_cross_entropy_with_logits",
    "bcewithlogits": "binary_cross_entropy_with_logits",
    "binarycrossentropy": "binary_cross_entropy",
    "binarycrossentropywithlogits": "binary_cross_entropy_with_logits",
}


def nearest_loss(word: str) -> str:
    """The remedy for a word that is no name of a loss."""
    plain = re.sub(r"[^a-z0-9]", "", word.lower()).removesuffix("loss")
    if plain in TORCHS:
        return f"Pass loss=torch.nn.functional.{TORCHS[plain]}."
    return nearest(SAME.get(plain, word), NAMED)
