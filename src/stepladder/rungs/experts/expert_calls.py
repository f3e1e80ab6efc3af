"""A forward that calls experts, run twice: to see the calls, and to be given their results.

What an expert is called with does not depend on what other experts gave. So the first pass runs
with stand-ins that write down their rows and answer with zeros; then all rows travel together;
then the second pass, which draws the same random numbers, is given the results. Whichever experts a
rank calls, in whatever order and under whatever condition, ranks exchange once, at one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.anatomy.expert_lists import ExpertList
from stepladder.seam.modules import children_of

Answer = Callable[[int, Tensor], Tensor]  # of an expert, by its number, to rows
REMEDY = "Leave experts out: zero3 slices such experts too."


@dataclass(frozen=True, slots=True)
class Call:
    """What an expert was called with."""

    expert: int
    rows: Tensor  # (..., width)

    def answer(self, rows: Tensor) -> Tensor:
        """An expert's rows in the shape that the call expects."""
        return rows.view(*self.rows.shape[:-1], rows.shape[-1])


class RemoteExpertRead(AttributeError):
    """A forward reads of an expert what only the rank has that holds it."""


class StandIn(nn.Module):
    """In an expert's place while the forward runs that calls it."""

    def __init__(self, name: str, index: int, answer: Answer) -> None:
        super().__init__()
        self.name, self.index, self.answer = name, index, answer

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        given = (*args, *kwargs.values())
        rows = given[0] if len(given) == 1 else None
        if not isinstance(rows, Tensor) or not rows.is_floating_point() or not rows.dim():
            kinds = ", ".join(type(one).__name__ for one in given) or "nothing"
            problem = f"is called with {kinds}, and one tensor of rows can be sent to its rank"
            raise ModelError(f"'{self.name}'", problem, REMEDY)
        return self.answer(self.index, rows)

    def __getattr__(self, word: str) -> Any:
        raise RemoteExpertRead(word, self.name)


class RemoteExpert(nn.Module):
    """Keeps the place of an expert that another rank holds."""

    def __init__(self, name: str, caller: str) -> None:
        super().__init__()
        self.name, self.caller = name, caller

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        problem = f"is called outside the forward of '{self.caller}', and another rank holds it"
        raise ModelError(f"'{self.name}'", problem, REMEDY)


def remote_experts(module: nn.Module) -> list[str]:
    """Names of the experts that other ranks hold."""
    return [name for name, part in module.named_modules() if isinstance(part, RemoteExpert)]


class FirstCall(BaseException):
    """Ends a pass that is only to show what experts are called with."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows


@contextmanager
def standing_in(listed: ExpertList, answer: Answer) -> Iterator[None]:
    """A context in which `answer` is asked for what the experts of a list would give."""
    entries = children_of(listed.container)
    before = dict(entries)
    for index, key in enumerate(before):
        entries[key] = StandIn(f"{listed.name}.{key}", index, answer)
    try:
        yield
    except RemoteExpertRead as read:
        word, name = read.args
        problem = f"'{listed.caller_name}' reads '{word}' of it, and another rank may hold it"
        raise ModelError(f"'{name}'", problem, REMEDY) from read
    finally:
        entries.clear()
        entries.update(before)


class Replay:
    """Gives the calls of a second pass the results of the first one's."""

    def __init__(self, listed: ExpertList, calls: list[Call], results: list[Tensor]) -> None:
        self.listed, self.calls, self.results = listed, calls, results
        self.seen = 0
        self.same: list[Tensor] = []

    def answer(self, index: int, rows: Tensor) -> Tensor:
        known = self.calls[self.seen] if self.seen < len(self.calls) else None
        if known is None or known.expert != index or known.rows.shape != rows.shape:
            raise self.refusal()
        with torch.no_grad():  # NaN is what it was
            self.same.append(((rows == known.rows) | (rows != rows)).all())
        self.seen += 1
        return self.results[self.seen - 1]

    def finish(self) -> None:
        """Refuse calls that were others than in the first pass. Waits for the device."""
        if self.seen != len(self.calls) or (self.same and not torch.stack(self.same).all()):
            raise self.refusal()

    def refusal(self) -> ModelError:
        problem = (
            "are called otherwise when their results are not zero: what one is called with depends "
            "on another's results, or on what changes from pass to pass"
        )
        return ModelError(f"'{self.listed.name}'", problem, REMEDY)


class Generators:
    """The random numbers that a pass draws, on the host and on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def read(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        if self.device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self.device))
        return states

    def set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.device)


class Anchor(torch.autograd.Function):
    """An output whose backward pass goes through the exchange, whatever became of its rows."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, rows: Tensor) -> Tensor:
        ctx.like = rows.shape, rows.dtype, rows.device
        # Recomputation ends with the last tensor that is saved: on no rank before the exchange.
        ctx.save_for_backward(rows.new_empty(0))
        return output.clone()  # and no view, which could not be written to

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        shape, dtype, device = ctx.like
        _ = ctx.saved_tensors
        return gradient, torch.zeros(shape, dtype=dtype, device=device)
