"""The facts of anything trainable: a name, a shape, a config, or a module traced on fake tensors.

A traced module is watched in three precisions, because they differ in what they keep, and with few
and with many rows: few show what is kept, many what backward needs beside it, because there the
activations and not the weights decide which moment is the worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, is_tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from stepladder.errors import ModelError, PlanError
from stepladder.workload import (
    RESNETS,
    Facts,
    Kept,
    Part,
    Shape,
    facts_of_shape,
    find_facts,
    shape_of_config,
)

from .anatomy import Anatomy
from .build import OTHERS, build
from .find import find_anatomy
from .holdings import Owns, holdings_of
from .keeping import compiled_of, eager_of, kept_in, selective_of
from .kernels import kernels_of
from .partwork import attention_in, kernels_in, matrices_in, moved_in
from .standin import Probe, Rehearsal
from .trace import Trace, Traced
from .watch import Held
from .watch import Part as Watched

FEW = 2  # rows; one would hide what broadcasting copies
MANY = 512, 1024  # rows of two passes whose difference is what each further row needs
MANY_REAL = 3, 6  # where they are real
READS = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # one sample's shape
IMAGE = (3, 224, 224)  # of every other built-in model that reads no tokens
PRECISIONS = (("float32", False), ("float32", True), ("bfloat16", False))


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
    was_training, many = module.training, MANY_REAL if stage is Probe else MANY
    module.train()
    try:
        few, some, more = (
            [
                trace(module, anatomy, inputs, rows, store, stage, mixed=mixed)
                for store, mixed in PRECISIONS
            ]
            for rows in (FEW, *many)
        )
    finally:
        module.train(was_training)
    full, holdings = few[0], holdings_of(module, anatomy)
    runs = [(name, len(list(run))) for name, run in groupby(full.order)]
    parts = []
    for name, count in (("entry", 1), *runs, ("exit", 1)):
        part = make_part(name, few, holdings.of(name), anatomy.cuts)
        if runs and name in ("entry", "exit"):  # only blocks are compiled or computed again
            part = replace(part, compiled=part.eager, selective=part.eager)
        beside = {
            kind: slope([getattr(f, kind) for f in some], [getattr(m, kind) for m in more], name)
            for kind in ("scratch", "passing")
        }
        beside = {kind: kept.times(1 / (many[1] - many[0])) for kind, kept in beside.items()}
        if name in full.inputs:
            part = replace(part, input=kept_in(*(m.inputs[name] for m in few), rows=FEW))
        output = full.outputs.get(name, Held()).single / FEW
        parts.append(replace(part, count=count, output=output, **beside))
    *places, classes = full.answer or (FEW, 0)
    tokens = length_of(inputs) if anatomy.embedding else torch.Size(places).numel() // FEW
    name = type(module).__name__
    read = sum(t[:1].numel() * t.element_size() for t in tree_leaves(inputs) if is_tensor(t))
    return Facts(name, tuple(parts), max(tokens, 1), classes, holdings.tied, read + 8.0 * tokens)


def slope(some: list[dict[str, Held]], more: list[dict[str, Held]], name: str) -> Kept:
    """What the further rows add."""
    added = (m.get(name, Held()) + s.get(name, Held()).times(-1) for s, m in zip(some, more))
    return kept_in(*added, rows=1)


def make_part(name: str, traced: list[Traced], owns: Owns, cuts: Mapping[str, str]) -> Part:
    seen = [each.parts.get(name, Watched()) for each in traced]
    full = seen[0]
    eager, compiled, selective = (
        kept_in(*(count(part) for part in seen), rows=FEW)
        for count in (eager_of, compiled_of, selective_of)
    )
    return Part(
        name=name,
        parameters=owns.parameters,
        whole_parameters=owns.whole,
        matrices=matrices_in(full, FEW, name, cuts),
        attention=attention_in(full),
        moved=moved_in(full, FEW),
        eager=eager,
        compiled=compiled,
        selective=selective,
        kernels=kernels_in(full),
    )


def trace(
    module: nn.Module,
    anatomy: Anatomy,
    inputs: Any,
    rows: int,
    store: str,
    stage: type[Rehearsal],
    *,
    mixed: bool = False,
) -> Traced:
    """Watch one pass of so many rows in one precision."""
    rehearsal = stage(module, store=getattr(torch, store))
    given = tree_map(partial(with_rows, rows), inputs)
    autocast = torch.autocast(rehearsal.device.type, dtype=torch.bfloat16, enabled=mixed)
    with rehearsal.fake:
        states = rehearsal.states()
        given = rehearsal.stand_in(given)
        # In another type than the batch's own the inputs are a copy, which is kept like the rest.
        read = [] if store != "float32" else [t for t in tree_leaves(given) if is_tensor(t)]
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
