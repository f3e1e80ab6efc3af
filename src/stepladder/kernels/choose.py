"""Rung: which faster kernels a run uses, and why. The one door of this package.

`choose` looks at the module, the loss and what the plan asks for, changes the layers that gain, and
gives each decision with its reason. Compilation alone waits for `Chosen.compile`, after recompute.

They work on what a rank computes with, whole or a slice: gathered parameters, a tensor-parallel
rank's classes, the last stage's head. Ranks choose alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from stepladder.loss import Loss
from stepladder.model import Anatomy
from stepladder.model.call_module import call
from stepladder.plan import SettledPlan

from .attention import use_exact_attention
from .channels_last import has_convolutions, images_channels_last, store_channels_last
from .convert_float8 import count_converted
from .folded_convolution import fold_first_convolutions
from .fused_head import FusedHead, HeadSlice, fuse_head, why_not_fused
from .graph.compile import (
    compile_parts,
    compile_scope,
    is_of_torch,
    pass_options,
    with_own_code,
)
from .graph.replayable_call import ReplayableCall

Context = Callable[[], AbstractContextManager[Any]]
ReadInputs = Callable[[Any], Any]
UNASKED = "kernels=on was not asked for"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """One possibility: whether it is used, and why."""

    what: str
    used: bool | None  # None: the model or the plan has no place for it
    because: str

    def __str__(self) -> str:
        return f"kernels: {self.what} {'on' if self.used else 'off'}: {self.because}"


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for a module and why."""

    unfused: Loss
    choices: tuple[KernelChoice, ...] = ()
    notes: list[str] = field(default_factory=list)  # choices to show, and what running finds out
    head: FusedHead | None = None
    channels_last: bool = False
    compile: Callable[[], None] = lambda: None  # to be called last of all rungs

    @property
    def loss(self) -> Loss:
        return self.unfused if self.head is None else self.head.loss

    @property
    def whole_outputs(self) -> Context:
        """The context in which the module returns its outputs, and not what a kernel takes."""
        return nullcontext if self.head is None else self.head.returning_logits

    def around(self, working: Context) -> Context:
        """The context of a forward pass."""
        if self.head is None:
            return working
        head = self.head

        @contextmanager
        def both() -> Iterator[None]:
            with working(), head.skipping_head():
                yield

        return both

    def reading(self, read: ReadInputs) -> ReadInputs:
        """Inputs as the changed module reads them."""
        if self.head is not None:
            prepare = self.head.prepare_inputs
            return lambda inputs: prepare(read(inputs))
        return (lambda inputs: images_channels_last(read(inputs))) if self.channels_last else read


def choose(
    module: nn.Module,
    anatomy: Anatomy,
    blocks: Sequence[nn.Module],
    loss: Loss,
    settled: SettledPlan,
    *,
    ends: bool = True,
    part: HeadSlice | None = None,
) -> Chosen:
    """Change the layers that gain on this device, and say what was chosen and why.

    Args:
        ends: this rank has the module's end; in a pipeline one stage has.
        part: which of the head's classes this rank has, where tensor parallelism cut it.
    """
    head, head_choice = choose_head(module, anatomy, loss, settled, ends=ends, part=part)
    layout, folding = choose_layout(module, settled)
    compiling, compile_choice = choose_compile(module, blocks, settled)
    if head is None and settled.compiles_loss:
        loss = compile_with_module(loss, module, settled)
    choices = (
        head_choice, layout, folding, choose_float8(module, settled), compile_choice,
        choose_autotune(settled), choose_adamw(settled), choose_attention(settled),
    )  # fmt: skip
    asked = bool(settled.plan.kernels or settled.plan.compile or settled.deterministic)
    notes = [str(each) for each in choices if asked and each.used is not None]
    if head is not None:
        head.notes = notes
    return Chosen(loss, choices, notes, head, bool(layout.used), compiling)


def choose_head(
    module: nn.Module,
    anatomy: Anatomy,
    loss: Loss,
    settled: SettledPlan,
    *,
    ends: bool,
    part: HeadSlice | None,
) -> tuple[FusedHead | None, KernelChoice]:
    what = "fused output layer and cross-entropy"
    if not settled.asks_for("head"):
        return None, KernelChoice(what, None, UNASKED)
    if not ends:
        return None, KernelChoice(what, None, "the last stage has them")
    why_not = why_not_fused(module, anatomy, loss, settled, cut=part is not None)
    if why_not:
        return None, KernelChoice(what, False, why_not)
    head = fuse_head(module, anatomy, loss, settled=settled, part=part)
    kind = "fp8" if head.float8 else "no fp8"
    because = f"{head.head.out_features:,} classes, whose logits then never exist whole"
    if part is not None:
        because += f"; each of {part.classes.ways} ranks has its own"
    return head, KernelChoice(what, True, f"{because} ({kind})" if settled.float8 else because)


def choose_layout(module: nn.Module, settled: SettledPlan) -> tuple[KernelChoice, KernelChoice]:
    """Channels-last, and with it the folded first convolution."""
    what, folding = "channels-last", "folded first convolution"
    asked = settled.asks_for("layout")
    if not asked or not has_convolutions(module):
        because = "no 2-d convolution" if asked else UNASKED
        return KernelChoice(what, None, because), KernelChoice(folding, None, because)
    if not settled.channels_last:
        because = f"made for GPUs, and this is {settled.device}"
        return KernelChoice(what, False, because), KernelChoice(folding, False, because)
    because = "cuDNN's 16-bit kernels read it without a transpose"
    if settled.whole_on_every_rank:
        store_channels_last(module)
    else:  # torch's sharding engine takes contiguous parameters only
        because += "; weights, which are small, are transposed"
    layout = KernelChoice(what, True, because)
    names = ", ".join(fold_first_convolutions(module))
    if not names:
        because = "no convolution of stride 2 over images of at most four channels"
        return layout, KernelChoice(folding, False, because)
    because = f"{names} then fills the matrix units' eight channels, in 16 bits"
    return layout, KernelChoice(folding, True, because)


def choose_float8(module: nn.Module, settled: SettledPlan) -> KernelChoice:
    """What the precision rung converted before anything was moved or split."""
    what = "fp8 linears"
    if not settled.float8:
        return KernelChoice(what, None, "the precision is not fp8")
    by = "our own casts" if settled.plan.kernels else "torchao"
    because = f"{count_converted(module)} linears are large enough to gain, by {by}"
    return KernelChoice(what, True, because)


def choose_compile(
    module: nn.Module, blocks: Sequence[nn.Module], settled: SettledPlan
) -> tuple[Callable[[], None], KernelChoice]:
    if not settled.plan.compile:
        because = "compile=on was not asked for"
        return lambda: None, KernelChoice("torch.compile", None, because)
    scope, because = compile_scope(blocks, settled)
    if settled.plan.zero >= 2 and any(map(is_of_torch, blocks)):
        because += "; blocks of torch's own classes stay uncompiled where they are gathered"

    def compiling() -> None:
        compile_parts(blocks if scope == "blocks" else [module], compile_options(settled))

    whole = scope == "module"
    what = "torch.compile of the whole module" if whole else "torch.compile by block"
    return compiling, KernelChoice(what, True, because)


def compile_with_module(loss: Loss, module: nn.Module, settled: SettledPlan) -> Loss:
    """The loss, compiled together with the module.

    Nothing but the loss leaves such a graph: logits over a vocabulary are neither kept until
    backward nor written in float32, as they are between two graphs.
    """

    def both(inputs: Any, targets: Any) -> torch.Tensor:
        return loss.mean_of(call(module, inputs), targets)

    options = compile_options(settled)
    if settled.records_graphs:
        return replace(loss, with_module=ReplayableCall(both, options))
    return replace(loss, with_module=torch.compile(with_own_code(both), options=options))


def compile_options(settled: SettledPlan) -> dict[str, Any] | None:
    selective = settled.plan.recompute.chooses
    passes = pass_options(kernels=settled.asks_for("matmuls"), selective=selective)
    # What the compiler would time, and choose by the clock, rounds differently.
    fixed = {"deterministic": True} if settled.deterministic else {}
    return {**passes, **fixed} or None


def choose_autotune(settled: SettledPlan) -> KernelChoice:
    what = "matmul autotuning and epilogues"
    if not settled.asks_for("matmuls"):
        return KernelChoice(what, None, UNASKED)
    if not settled.plan.compile:
        return KernelChoice(what, False, "its passes are part of compile=on")
    if not settled.on_gpu:
        return KernelChoice(what, False, f"cuBLASLt does not run on {settled.device}")
    because = "each large 16-bit matmul takes cuBLASLt's fastest algorithm with the same bits"
    return KernelChoice(what, True, because)


def choose_attention(settled: SettledPlan) -> KernelChoice:
    what = "attention with a fixed order of sums"
    if not settled.deterministic or not settled.on_gpu:
        return KernelChoice(what, None, "the same bits on a GPU were not asked for")
    if use_exact_attention(torch.device(settled.device)):
        return KernelChoice(what, True, "exact=runs, which cuDNN's backward pass cannot give")
    return KernelChoice(what, False, "torch's deterministic attention is kept on this device")


def choose_adamw(settled: SettledPlan) -> KernelChoice:
    """The update itself is chosen where the optimizer is built (train/optimizer)."""
    what = "fused AdamW for fp32 masters"
    if not settled.masters:
        return KernelChoice(what, None, "the precision keeps no fp32 masters")
    if not settled.on_gpu:
        return KernelChoice(what, False, f"Triton does not run on {settled.device}")
    return KernelChoice(what, True, "one kernel reads and writes every number once")
