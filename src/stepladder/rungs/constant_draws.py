"""Noise that is one number: what a trial draws is then the same for rows alone and among others.

What torch draws is filled with a constant, by whichever way: a function, a tensor's own method, a
generator that the module holds. Python's and numpy's generators begin every pass in one state,
which is enough for a number a pass and not for a number a row.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from stepladder.errors import ModelError
from stepladder.loss.piece_refusals import UNCUT
from stepladder.world.generator_state import (
    GENERATORS,
    generator_state,
    set_generator_state,
)

DRAWN = 0.5  # in the place of noise
NOISE = {"bernoulli", "bernoulli_", "cauchy", "cauchy_", "exponential", "exponential_", "geometric",
         "geometric_", "log_normal", "log_normal_", "normal", "normal_", "poisson", "binomial",
         "rand", "rand_like", "randn", "randn_like", "uniform", "uniform_",
         "_standard_gamma", "_sample_dirichlet"}  # fmt: skip
NUMBERS = {"randint", "randint_like", "random_"}  # whole ones, which may be positions
DRAWS = {*NOISE, *NUMBERS, "randperm", "multinomial"}


class ConstantDraws(TorchFunctionMode):
    """A context in which what torch draws is constant, and its generators may advance.

    Functions are watched and not what they dispatch: inside a mode of dispatch a function that its
    author compiled, as flex attention is, does not run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.any = False  # whether any was drawn

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.gumbel_softmax:  # which draws inside
            self.any = True
            return softmax(*args, **kwargs)
        made, name = func(*args, **kwargs), getattr(func, "__name__", "")
        if name not in DRAWS or not isinstance(made, Tensor):
            return made
        self.any = True
        if name in NOISE:
            return made.fill_(DRAWN)
        if name == "randperm":
            return made.copy_(torch.arange(len(made), device=made.device))
        if name == "multinomial":  # the likeliest, which are not one twice
            order = args[0].argsort(-1, descending=True)
            return made.copy_(order[..., torch.arange(made.shape[-1]) % order.shape[-1]])
        return made.fill_(least(args, kwargs))


def softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 0.0, dim: int = -1
) -> Tensor:
    """Gumbel's softmax if all of its noise is one number, which changes nothing."""
    soft = (logits / tau).softmax(dim)
    if not hard:
        return soft
    index = soft.argmax(dim, keepdim=True)
    return torch.zeros_like(soft).scatter_(dim, index, 1.0) - soft.detach() + soft


def least(args: Any, kwargs: Any) -> int:
    """The least whole number that could have been drawn."""
    numbers = [one for one in args if isinstance(one, int)]
    first = numbers[0] if len(numbers) > 1 or "high" in kwargs else 0
    return kwargs.get("low", kwargs.get("from", first))


@dataclass(frozen=True, slots=True)
class Generator:
    """Something that draws, outside of the generators that a run seeds in each step."""

    name: str
    holder: Any

    @property
    def state(self) -> Any:
        return generator_state(self.holder)


@dataclass(slots=True)
class TrialDraws:
    """What may draw in a trial's passes, and how it stands where one begins."""

    begin: list[tuple[Generator, Any]] = field(default_factory=list)  # of every pass
    drawn: set[str] = field(default_factory=set)  # those that gave numbers which are not constant

    @contextmanager
    def put_back(self, device: torch.device, holders: Iterable[Any]) -> Iterator[None]:
        """A context after which every generator is as it was."""
        before = [(one, one.state) for one in generators_of(holders)]
        random.seed(0)  # as other ranks do, which try the same rows
        np.random.seed(0)
        self.begin = [(one, one.state) for one, _ in before]
        try:
            with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
                yield
        finally:
            rewind(before)

    @contextmanager
    def constant(self, may_draw: bool = True) -> Iterator[ConstantDraws]:
        """A pass that draws the same whatever its rows, as far as that can be had.

        Args:
            may_draw: whether torch may draw; watching for it slows every operation.
        """
        rewind(self.begin)
        noise = ConstantDraws()
        with noise if may_draw else nullcontext():
            yield noise
        self.drawn |= {
            generator.name
            for generator, state in self.begin
            if not isinstance(generator.holder, torch.Generator)
            and repr(generator.state) != repr(state)
        }

    def blamed(self, problem: ModelError) -> ModelError:
        """The reason why a loss does not add up, if its module draws other noise for other rows."""
        if not self.drawn:
            return problem
        return ModelError(
            "loss",
            f"cannot be tried in pieces of a batch: a forward pass draws from "
            f"{' and '.join(sorted(self.drawn))}, which gives the same rows other numbers in other "
            "pieces",
            'Draw by torch (torch.rand), or give a loss by name, such as loss="cross_entropy". '
            f"{UNCUT}.",
        )


def rewind(states: Iterable[tuple[Generator, Any]]) -> None:
    for generator, state in states:
        set_generator_state(generator.holder, state)


def generators_of(holders: Iterable[Any]) -> Iterator[Generator]:
    """Python's, numpy's, and those that a module, its parts or a loss hold as attributes."""
    yield Generator("Python's random", random)
    yield Generator("numpy.random", np.random)
    for holder in holders:
        for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
            if isinstance(value, GENERATORS):
                yield Generator(f"{type(holder).__name__}.{name}", value)
