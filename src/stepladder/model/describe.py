"""The facts of anything trainable: a name, a shape, a config, or a module traced on fake tensors.

A traced module is watched in three precisions, because they differ in what they keep, and with two
and four rows, because what backward needs beside what was kept is a slope, not a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from stepladder.errors import ModelError, PlanError
from stepladder.workload import (
    RESNETS,
    Facts,
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

FEW, MORE = 2, 4  # rows of the traced passes; one row would hide what broadcasting copies
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
    was_training = module.training
    module.train()
    try:
        few = trace(module, anatomy, inputs, FEW, "float32", stage)
        full, mixed, pure = (
            trace(module, anatomy, inputs, MORE, store, stage, mixed=mixed)
            for store, mixed in PRECISIONS
        )
    finally:
        module.train(was_training)
    holdings = holdings_of(module, anatomy)
    runs = [(name, len(list(run))) for name, run in groupby(full.order)]
    parts = []
    for name, count in (("entry", 1), *runs, ("exit", 1)):
        seen = [traced.parts.get(name, Watched()) for traced in (full, mixed, pure)]
        more = full.scratch.get(name, Held()) + few.scratch.get(name, Held()).times(-1)
        part = make_part(name, seen, holdings.of(name), anatomy.cuts)
        if runs and name in ("entry", "exit"):  # only blocks are compiled or computed again
            part = replace(part, compiled=part.eager, selective=part.eager)
        stream = full.outputs.get(name, Held()).single / MORE
        scratch = max(more.num_bytes / 4 / (MORE - FEW), 0.0)
        parts.append(replace(part, count=count, output=stream, scratch=scratch))
    *places, classes = full.answer or (MORE, 0)
    tokens = length_of(inputs) if anatomy.embedding else torch.Size(places).numel() // MORE
    name = type(module).__name__
    return Facts(name, tuple(parts), max(tokens, 1), classes, holdings.tied)


def make_part(name: str, seen: list[Watched], owns: Owns, cuts: Mapping[str, str]) -> Part:
    full = seen[0]
    eager, compiled, selective = (
        kept_in(*(count(part) for part in seen), rows=MORE)
        for count in (eager_of, compiled_of, selective_of)
    )
    return Part(
        name=name,
        parameters=owns.parameters,
        whole_parameters=owns.whole,
        matrices=matrices_in(full, MORE, name, cuts),
        attention=attention_in(full),
        moved=moved_in(full, MORE),
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
        following = Trace(rehearsal.module, anatomy, [*states.values()])
        with autocast:
            return following.run(lambda: rehearsal(given, states))


def with_rows(rows: int, value: Any) -> Any:
    """The first row as often as wanted; only its shape matters to a stand-in."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    return value[:1].expand(rows, *value.shape[1:]).clone()


def length_of(inputs: Any) -> int:
    """Tokens of one sample: the second dimension of the first tensor."""
    first = next(leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
    return first.shape[1] if first.dim() > 1 else 1
