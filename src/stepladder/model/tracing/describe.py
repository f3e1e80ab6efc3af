"""The facts of anything trainable: a name, a shape, a config, or a module traced on fake tensors.

A traced module is watched in three precisions, because they differ in what they keep, and with few
and with many rows: few show what is kept, many what backward needs beside it, because there the
activations and not the weights decide which moment is the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, is_tensor, nn

from stepladder.errors import ModelError, PlanError
from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.model.anatomy.find_anatomy import find_anatomy
from stepladder.model.anatomy.parameter_parts import Owns, holdings_of
from stepladder.model.build import OTHERS, build
from stepladder.seam.pytree import tree_leaves, tree_map
from stepladder.workload import (
    Facts,
    Kept,
    Part,
    Shape,
    facts_of_shape,
    find_facts,
    shape_of_config,
)
from stepladder.workload.convnet import RESNETS

from .fake_tensors import Probe, Rehearsal
from .gpu_kernels import kernels_of
from .operation_recorder import Held
from .operation_recorder import Part as Watched
from .part_costs import attention_in, launches_back, launches_in, matrices_in, moved_by, moved_in
from .saved_for_backward import compiled_of, eager_of, kept_in, selective_of
from .trace_blocks import Trace, Traced

FEW = 2  # rows; one would hide what broadcasting copies
MANY, MANY_REAL = 512, 3  # rows of a pass, on stand-ins or for real, that is then doubled
READS = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # one sample's shape
IMAGE = (3, 224, 224)  # of every other built-in model that reads no tokens
HOW = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False))  # stored, autocast


def describe(
    what: str | Shape | Mapping[str, Any] | nn.Module,
    *,
    sequence: int | None = None,
    sample: Any = None,
    probe: bool = False,
    device: str = "cuda",
) -> Facts:
    """The facts of a preset, a shape, a Hugging Face config or any module.

    Args:
        sample: a batch or its inputs, of which one row is enough; a module that reads tokens
            needs only `sequence`.
        probe: run a copy of the module for real on the CPU, where it cannot be traced.
        device: "cpu" counts what torch's kernels keep on a processor, where they differ.
    """
    if isinstance(what, Shape):
        return facts_of_shape(what, sequence)
    if isinstance(what, str):
        return facts_of_name(what, sequence)
    if isinstance(what, Mapping):
        return facts_of_shape(shape_of_config(what), sequence)
    if not isinstance(what, nn.Module):
        raise PlanError(
            "model",
            f"a {type(what).__name__} is neither a name, a shape, a config nor a module",
            "Give one of these.",
        )
    anatomy = find_anatomy(what)
    stage = Probe if probe else Rehearsal
    inputs = inputs_of(what, anatomy, sequence, sample)
    with kernels_of(device):
        return facts_of_module(what, anatomy, inputs, stage)


def facts_of_name(name: str, sequence: int | None) -> Facts:
    """Counted where a shape says all, else traced on the built-in model of that name."""
    if name not in OTHERS or name in RESNETS:
        return find_facts(name, sequence)
    sample = torch.zeros(1, *READS.get(name, IMAGE))
    return replace(describe(build(name, device="meta"), sample=sample), name=name)


def inputs_of(module: nn.Module, anatomy: Anatomy, sequence: int | None, sample: Any) -> Any:
    if sample is not None:
        return getattr(sample, "inputs", sample)
    length = sequence or longest(module)
    if anatomy.embedding is None or length is None:
        raise ModelError(
            type(module).__name__,
            "cannot be traced without knowing what it reads",
            "Give sample=, the inputs of one row; where it reads tokens, sequence= is enough.",
        )
    return torch.zeros(1, length, dtype=torch.long)


def longest(module: nn.Module) -> int | None:
    """The sequence a module was built for, where it says so."""
    shape, config = getattr(module, "shape", None), getattr(module, "config", None)
    names = (shape, "sequence"), (config, "max_position_embeddings"), (config, "n_positions")
    return next((v for o, name in names if isinstance(v := getattr(o, name, None), int)), None)


def facts_of_module(
    module: nn.Module, anatomy: Anatomy, inputs: Any, stage: type[Rehearsal]
) -> Facts:
    passes = watch_passes(module, anatomy, inputs, stage)
    full, holdings = passes.few[0], holdings_of(module, anatomy)
    runs = [(name, len(list(run))) for name, run in groupby(full.order)]
    parts = []
    for name, count in (("entry", 1), *runs, ("exit", 1)):
        part = make_part(name, passes, holdings.of(name), anatomy.cuts)
        if runs and name in ("entry", "exit"):  # only blocks are compiled or computed again
            part = replace(part, compiled=part.eager, selective=part.eager)
        parts.append(replace(part, count=count))
    *places, classes = full.answer or (FEW, 0)
    tokens = length_of(inputs) if anatomy.embedding else torch.Size(places).numel() // FEW
    read = sum(t[:1].numel() * t.element_size() for t in tree_leaves(inputs) if is_tensor(t))
    return Facts(
        name=type(module).__name__,
        parts=tuple(parts),
        tokens=max(tokens, 1),
        vocab=classes,
        tied_parameters=holdings.tied,
        sample_bytes=read + 8.0 * tokens,  # and a target for each
    )


@dataclass(frozen=True, slots=True)
class Passes:
    """Traced passes, each in the three precisions."""

    few: list[Traced]
    many: list[Traced]
    twice: list[Traced]  # as many rows again
    further: int  # rows between the two

    def kept(self, name: str, count: Callable[[Watched], Held]) -> Kept:
        return kept_in([count(p.parts.get(name, Watched())) for p in self.few], FEW)

    def beside(self, name: str, kind: str) -> Kept:
        """What each further row needs beside what is kept: in "scratch" or "passing"."""
        many, twice = (
            [getattr(p, kind).get(name, Held()) for p in passes]
            for passes in (self.many, self.twice)
        )
        return kept_in([two + one.times(-1) for one, two in zip(many, twice)], self.further)


def watch_passes(
    module: nn.Module, anatomy: Anatomy, inputs: Any, stage: type[Rehearsal]
) -> Passes:
    was_training, many = module.training, MANY_REAL if stage is Probe else MANY
    module.train()
    try:
        few, one, two = (
            [
                trace(stage(module, store=store), anatomy, inputs, rows, mixed)
                for store, mixed in HOW
            ]
            for rows in (FEW, many, 2 * many)
        )
    finally:
        module.train(was_training)
    return Passes(few, one, two, many)


def make_part(name: str, passes: Passes, owns: Owns, cuts: Mapping[str, str]) -> Part:
    full = passes.few[0]
    seen_in = [p.parts.get(name, Watched()) for p in passes.few]
    seen = seen_in[0]
    entered = [p.inputs[name] for p in passes.few if name in p.inputs]
    matrices = matrices_in(seen, FEW, name, cuts)
    part = Part(
        name=name,
        parameters=owns.parameters,
        whole_parameters=owns.whole,
        frozen_parameters=owns.frozen,
        frozen_whole_parameters=owns.frozen_whole,
        matrices=matrices,
        whole=any(m.experts > 1 for m in matrices),
        attention=attention_in(seen),
        moved=moved_in(seen_in, FEW),
        eager=passes.kept(name, eager_of),
        compiled=passes.kept(name, compiled_of),
        selective=passes.kept(name, selective_of),
        scratch=passes.beside(name, "scratch"),
        passing=passes.beside(name, "passing"),
        making=passes.beside(name, "making") if name in passes.many[0].making else None,
        output=full.outputs.get(name, Held()).single / FEW,
        input=kept_in(entered, FEW) if entered else None,
        launches=launches_in(seen_in),
        tensors=owns.tensors,
    )
    if name not in passes.many[0].back:  # an end: nobody watched its backward alone
        return part
    back = [p.back[name] for p in passes.many]
    return replace(
        part, moved_back=moved_by(back, passes.further), launches_back=launches_back(back, seen_in)
    )


def trace(rehearsal: Rehearsal, anatomy: Anatomy, inputs: Any, rows: int, mixed: bool) -> Traced:
    """Watch one pass of so many rows in one precision."""
    given = tree_map(partial(with_rows, rows), inputs)
    autocast = torch.autocast(rehearsal.device.type, dtype=torch.bfloat16, enabled=mixed)
    with rehearsal.fake:
        states, given = rehearsal.states(), rehearsal.stand_in(given)
        # In another type than the batch's own the inputs are a copy, which is kept like the rest.
        copied = rehearsal.store != torch.float32
        read = [t for t in tree_leaves(given) if is_tensor(t) and not copied]
        following = Trace(rehearsal.module, anatomy, [*states.values(), *read], rows > FEW)
        with autocast:
            return following.run(lambda: rehearsal.run(given, states))


def with_rows(rows: int, value: Any) -> Any:
    """The first row as often as wanted; only its shape matters to a stand-in."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    return value[:1].expand(rows, *value.shape[1:]).clone()


def length_of(inputs: Any) -> int:
    """Tokens of one sample: the second dimension of the first tensor."""
    first = next(leaf for leaf in tree_leaves(inputs) if is_tensor(leaf))
    return first.shape[1] if first.dim() > 1 else 1
