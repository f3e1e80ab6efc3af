"""Whether a model's blocks form a chain, and how what flows enters and leaves each of them.

A pipeline sends one tensor from stage to stage. So each block must take what the block before it
returned, and nothing may bypass that: no block is given anything else that an earlier one computed,
and what follows the last block reads its result alone. One forward pass on meta tensors shows all
of that before any memory is used; a model that is not a chain is refused with the block's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from stepladder.errors import ModelError, StepladderError
from stepladder.model import Anatomy, count_flops
from stepladder.model.tracing.count_flops import Flops
from stepladder.model.tracing.trace_blocks import CACHES
from stepladder.rungs.outside_calls import OutsideCalls
from stepladder.seam.modules import parameters_of
from stepladder.seam.pytree import tree_leaves
from stepladder.seam.storages import version_of

REMEDY = "Use pipeline=1, and shard or tensor instead."


@dataclass(frozen=True, slots=True)
class Link:
    """How what flows from block to block enters one of them and leaves it."""

    argument: int | str  # the position or name under which the block takes it
    returned: int  # 0: the block returns it alone; else how many things, of which it is the first
    writes: bool = False  # the block changes in place what it is given


def with_parameters(module: nn.Module, names: Sequence[str]) -> list[str]:
    """Those parts that hold parameters: the others cost nothing, and any stage may ask them."""
    return [name for name in names if any(True for _ in module.get_submodule(name).parameters())]


def within(part: str, name: str) -> bool:
    return f"{name}.".startswith(f"{part}.")


def traced(module: nn.Module, inputs: Any) -> Flops:
    """One forward pass without numbers, or the refusal of a module whose code asks for them."""
    try:
        return count_flops(module, inputs)
    except StepladderError:
        raise
    except Exception as error:
        raise ModelError(
            "layout.pipeline",
            f"{type(module).__name__} cannot be traced, since its code depends on numbers "
            f"({type(error).__name__})",
            REMEDY,
        ) from error


def trace_chain(module: nn.Module, anatomy: Anatomy, inputs: Any) -> tuple[Link, ...]:
    """Watch one pass through the blocks of a drawing; refuse what is not a chain."""
    parts = (*anatomy.entry, *anatomy.blocks, *anatomy.exit)
    for name, parameter in module.named_parameters():
        owned = parameter.is_floating_point() and any(within(part, name) for part in parts)
        parameter.requires_grad_(owned)  # what all stages have may go anywhere
    chain = Chain(type(module).__name__, anatomy)
    with chain.watching(module, anatomy):
        traced(module, inputs)
    if any(link.returned > 1 for link in chain.links):
        refuse_read_extras(module, anatomy, inputs)
    if len(chain.links) < len(anatomy.blocks):
        name = anatomy.blocks[len(chain.links)]
        raise ModelError("layout.pipeline", f"block '{name}' of {chain.model} never ran", REMEDY)
    return tuple(chain.links)


def refuse_read_extras(module: nn.Module, anatomy: Anatomy, inputs: Any) -> None:
    """Refuse a module that cannot do without what a block returns beside what flows.

    A stage knows of earlier blocks' results only what flows; the rest is None there.
    """
    handles = [
        module.get_submodule(name).register_forward_hook(first_alone) for name in anatomy.blocks
    ]
    try:
        count_flops(module, inputs)
    except Exception as error:
        raise ModelError(
            "layout.pipeline",
            f"{type(module).__name__} reads more of a block's result than its first tensor",
            REMEDY,
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def first_alone(block: nn.Module, args: Any, output: Any) -> Any:
    if not isinstance(output, tuple | list):
        return output
    return (output[0], *[None] * (len(output) - 1))


class Chain:
    """Follows what flows through the blocks.

    What the entry and each block return is marked as wanting a gradient, as is what is computed
    from their parameters. The last block's result is taken out of the graph, and parameters of the
    exit want no gradient after it; whatever else then wants one went around.
    """

    def __init__(self, model: str, anatomy: Anatomy) -> None:
        self.model, self.names, self.exit = model, anatomy.blocks, anatomy.exit
        self.links: list[Link] = []
        self.argument: int | str = 0
        self.flowing: Tensor | None = None
        self.parts: list[nn.Module] = []

    def traced_parameters(self) -> list[Tensor]:
        """The tensors that stand for the exit's parameters while it is traced."""
        every = [parameters_of(part).values() for part in self.parts]
        return [found for each in every for found in each if found is not None and found.is_leaf]

    @contextmanager
    def watching(self, module: nn.Module, anatomy: Anatomy) -> Iterator[None]:
        self.parts = [p for name in self.exit for p in module.get_submodule(name).modules()]
        handles = [module.register_forward_hook(self.end)]
        for name in with_parameters(module, anatomy.entry):
            handles.append(module.get_submodule(name).register_forward_hook(mark))
        for index, name in enumerate(self.names):
            block = module.get_submodule(name)
            enter, leave = partial(self.enter, index), partial(self.leave, index)
            handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(block.register_forward_hook(leave))
        blocks = anatomy.blocks_of(module)
        calls = OutsideCalls(self.model, blocks, "layout.pipeline", REMEDY)
        try:
            yield
        finally:
            calls.stop()
            for handle in handles:
                handle.remove()

    def enter(self, index: int, block: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if index != len(self.links):
            raise self.refusal(index, "does not run after the one before it, once a pass")
        given: dict[int | str, Any] = dict(enumerate(args))
        given.update(kwargs)
        taken = [key for key, value in given.items() if value is self.flowing]
        if index and not taken:
            raise self.refusal(index, f"is not given what '{self.names[index - 1]}' returned")
        self.argument = taken[0] if index else 0
        for key, value in given.items():
            if index and key != self.argument and key not in CACHES and needs_gradient(value):
                raise self.refusal(index, f"is also given, as {key}, what earlier parts computed")

    def leave(self, index: int, block: nn.Module, args: Any, output: Any) -> Any:
        several = isinstance(output, tuple | list)
        first = output[0] if several and output else output
        if not isinstance(first, Tensor):
            raise self.refusal(index, f"returns a {type(output).__name__}, not a tensor first")
        writes = self.flowing is not None and version_of(self.flowing) > 0
        self.links.append(Link(self.argument, len(output) if several else 0, writes))
        last = index == len(self.names) - 1
        for parameter in self.traced_parameters() if last else ():
            parameter.requires_grad_(False)
        self.flowing = first.detach() if last else requiring_gradient(first)
        return (self.flowing, *output[1:]) if several else self.flowing

    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        parts = dict(output) if isinstance(output, dict) else {"": output}
        ended = len(self.links) == len(self.names)
        if ended and any(
            needs_gradient(value) for name, value in parts.items() if name not in CACHES
        ):
            raise ModelError(
                "layout.pipeline",
                f"what follows the blocks of {self.model} reads more than the last one's result",
                REMEDY,
            )

    def refusal(self, index: int, problem: str) -> ModelError:
        name = self.names[index]
        return ModelError("layout.pipeline", f"block '{name}' of {self.model} {problem}", REMEDY)


def needs_gradient(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in tree_leaves(value))


def requiring_gradient(tensor: Tensor) -> Tensor:
    """A tensor that wants a gradient, and may be written to as a computed one may."""
    return tensor.detach().requires_grad_().clone() if tensor.is_floating_point() else tensor


def mark(part: nn.Module, args: Any, output: Any) -> Any:
    return requiring_gradient(output) if isinstance(output, Tensor) else None
