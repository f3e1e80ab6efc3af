"""The workload facts of a model: from a name, a shape, a config, or by tracing a module.

A module is traced in three precisions, because they differ in what they save for backward, and with
few and with many rows. Few rows show what is saved; many show what backward needs beyond that,
because then activations rather than weights determine the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, is_tensor, nn

from stepladder.errors import ModelError, PlanError
from stepladder.model.anatomy.anatomy import Anatomy
from stepladder.model.anatomy.expert_lists import expert_lists
from stepladder.model.anatomy.find_anatomy import find_anatomy
from stepladder.model.anatomy.parameter_parts import ParameterCounts, count_parameters
from stepladder.model.build import OTHER_MODELS, build
from stepladder.model.forward_state import state_restored
from stepladder.model.traced_inputs import inputs_of, without_targets
from stepladder.model.training_mode import training
from stepladder.seam.pytree import tree_leaves, tree_map
from stepladder.workload import (
    ElementsByType,
    Facts,
    Part,
    Shape,
    facts_of_shape,
    find_facts,
    shape_of_config,
)
from stepladder.workload.convnet import RESNETS

from .copy_module import copy_sharing_tensors
from .fake_tensors import FakeForward, RealForward
from .gpu_kernels import device_kernels
from .operation_recorder import ElementCounts, RecordedPart
from .part_costs import attention_in, launches_back, launches_in, matrices_in, moved_by, moved_in
from .saved_for_backward import kept_per_sample, saved_compiled, saved_eager, saved_selective
from .trace_blocks import BlockTracer, TracedPass

FEW = 2  # rows; one would hide what broadcasting copies
MANY, MANY_REAL = 512, 3  # rows on fake or on real tensors; a second pass has twice as many
SAMPLE_SHAPES = {"mlp-tiny": (64,), "resnet-tiny": (1, 8, 8)}  # of one sample
IMAGE = (3, 224, 224)  # the sample of every other built-in model without tokens
PRECISIONS = (
    (torch.float32, False),
    (torch.float32, True),
    (torch.bfloat16, False),
)  # stored, autocast


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
        sample: a batch as `run.step` takes it, or its inputs; one row is enough. A module that
            reads tokens needs only `sequence`.
        probe: run a copy of the module with real tensors on the CPU, if it cannot be traced.
        device: "cpu" counts what torch's CPU kernels save, which may differ from CUDA's.

    >>> import torch, stepladder as sl
    >>> sl.describe("llama3-8b", sequence=4096).parameters
    8030261248
    >>> sl.describe(torch.nn.Linear(4, 2), sample=torch.randn(1, 4)).parameters
    10
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
    given = what  # what cannot be copied runs itself, and so do functions in a copy's attributes
    with suppress(ModelError):
        what = copy_sharing_tensors(given)
    anatomy = find_anatomy(what)
    forward_class = RealForward if probe else FakeForward
    inputs = inputs_of(what, anatomy, sequence, sample)
    with device_kernels(device), state_restored(given), state_restored(what):
        found = without_own_loss(what, anatomy, inputs, forward_class)
        return found or facts_of_module(what, anatomy, inputs, forward_class)


def without_own_loss(
    module: nn.Module, anatomy: Anatomy, inputs: Any, forward_class: type[FakeForward]
) -> Facts | None:
    """Of a module that computes its loss where it is given targets: without them, if it runs so.

    The loss is counted from the logits' shape, so what a traced loss keeps would count twice.
    """
    rest = without_targets(inputs)
    if rest is None:
        return None
    try:
        found = facts_of_module(module, anatomy, rest, forward_class)
    except Exception:  # as a foreign module that reads them for more than its loss may
        return None
    return found if found.vocab > 1 else None


def facts_of_name(name: str, sequence: int | None) -> Facts:
    """Computed if a shape is enough, else traced on the built-in model of that name."""
    if name not in OTHER_MODELS or name in RESNETS:
        return find_facts(name, sequence)
    sample = torch.zeros(1, *SAMPLE_SHAPES.get(name, IMAGE))
    return replace(describe(build(name, device="meta"), sample=sample), name=name)


def facts_of_module(
    module: nn.Module, anatomy: Anatomy, inputs: Any, forward_class: type[FakeForward]
) -> Facts:
    passes = trace_passes(module, anatomy, inputs, forward_class)
    full, parameters = passes.few[0], count_parameters(module, anatomy)
    runs = [(name, len(list(run))) for name, run in groupby(full.order)]
    lists = {one.name: len(one.experts) for one in expert_lists(module, anatomy.blocks)}
    parts = []
    for name, count in (("entry", 1), *runs, ("exit", 1)):
        part = make_part(name, passes, parameters.of(name), anatomy.cuts, lists)
        if runs and name in ("entry", "exit"):  # only blocks are compiled or recomputed
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
        tied_parameters=parameters.tied,
        sample_bytes=read + 8.0 * tokens,  # and a target for each
        uncounted=tuple(sorted({name for part in full.parts.values() for name in part.uncounted})),
    )


@dataclass(frozen=True, slots=True)
class TracedPasses:
    """Traced passes with different numbers of rows, each in the three precisions."""

    few: list[TracedPass]
    many: list[TracedPass]
    twice: list[TracedPass]  # with twice the rows of `many`
    further: int  # rows between those two

    def kept(self, name: str, count: Callable[[RecordedPart], ElementCounts]) -> ElementsByType:
        return kept_per_sample([count(p.parts.get(name, RecordedPart())) for p in self.few], FEW)

    def beside(self, name: str) -> ElementsByType:
        return kept_per_sample([p.beside.get(name, ElementCounts()) for p in self.few], FEW)

    def extra_per_row(self, name: str, kind: str) -> ElementsByType:
        """What each further row needs beyond what is saved: in "scratch", "passing" or "making"."""
        many, twice = (
            [getattr(p, kind).get(name, ElementCounts()) for p in passes]
            for passes in (self.many, self.twice)
        )
        return kept_per_sample([two + one.times(-1) for one, two in zip(many, twice)], self.further)


def trace_passes(
    module: nn.Module, anatomy: Anatomy, inputs: Any, forward_class: type[FakeForward]
) -> TracedPasses:
    many = MANY_REAL if forward_class is RealForward else MANY
    with training(module):
        few, one, two = (
            [
                trace_pass(forward_class(module, store=store), anatomy, inputs, rows, mixed)
                for store, mixed in PRECISIONS
            ]
            for rows in (FEW, many, 2 * many)
        )
    return TracedPasses(few, one, two, many)


def make_part(
    name: str,
    passes: TracedPasses,
    counts: ParameterCounts,
    cuts: Mapping[str, str],
    lists: Mapping[str, int],
) -> Part:
    full = passes.few[0]
    seen_in = [p.parts.get(name, RecordedPart()) for p in passes.few]
    seen = seen_in[0]
    entered = [p.inputs[name] for p in passes.few if name in p.inputs]
    matrices = matrices_in(seen, FEW, name, cuts, lists)
    dealt = sum(m.weights for m in matrices if m.narrows)
    part = Part(
        name=name,
        parameters=counts.parameters,
        whole_parameters=counts.whole,
        frozen_parameters=counts.frozen,
        frozen_whole_parameters=counts.frozen_whole,
        narrowed_parameters=counts.narrowed,
        narrowed_whole_parameters=counts.narrowed_whole,
        packed_parameters=counts.packed,
        matrices=counts.matrices,
        whole_matrices=counts.whole_matrices,
        matrix_rows=counts.matrix_rows,
        expert_biases=counts.in_lists - dealt if dealt else 0,
        matmuls=matrices,
        whole=any(m.experts > 1 for m in matrices),
        attention=attention_in(seen),
        moved=moved_in(seen_in, FEW),
        eager=passes.kept(name, saved_eager),
        compiled=passes.kept(name, saved_compiled),
        selective=passes.kept(name, saved_selective) + passes.beside(name),
        scratch=passes.extra_per_row(name, "scratch"),
        passing=passes.extra_per_row(name, "passing"),
        making=passes.extra_per_row(name, "making") if name in passes.many[0].making else None,
        output=full.outputs.get(name, ElementCounts()).single / FEW,
        input=kept_per_sample(entered, FEW) if entered else None,
        launches=launches_in(seen_in),
        tensors=counts.tensors,
    )
    if name not in passes.many[0].back:  # entry or exit, whose backward was not traced alone
        return part
    back = [p.back[name] for p in passes.many]
    return replace(
        part, moved_back=moved_by(back, passes.further), launches_back=launches_back(back, seen_in)
    )


def trace_pass(
    fake_forward: FakeForward, anatomy: Anatomy, inputs: Any, rows: int, mixed: bool
) -> TracedPass:
    """Trace one pass of this many rows in one precision."""
    given = tree_map(partial(with_rows, rows), inputs)
    autocast = torch.autocast(fake_forward.device.type, dtype=torch.bfloat16, enabled=mixed)
    with fake_forward.fake:
        states, given = fake_forward.states(), fake_forward.to_fake(given)
        # In another dtype than the batch's the inputs are a copy, which counts as an activation.
        copied = fake_forward.store != torch.float32
        read = [t for t in tree_leaves(given) if is_tensor(t) and not copied]
        following = BlockTracer(fake_forward.module, anatomy, [*states.values(), *read], rows > FEW)
        with autocast:
            return following.run(lambda: fake_forward.run(given, states))


def with_rows(rows: int, value: Any) -> Any:
    """The first row repeated, in the memory of one: a fake tensor needs no more than its shape."""
    if not isinstance(value, Tensor) or not value.dim():
        return value
    return value[:1].expand(rows, *value.shape[1:])


def length_of(inputs: Any) -> int:
    """The tokens of one sample: the second dimension of the first tensor."""
    first = next(leaf for leaf in tree_leaves(inputs) if is_tensor(leaf))
    return first.shape[1] if first.dim() > 1 else 1
