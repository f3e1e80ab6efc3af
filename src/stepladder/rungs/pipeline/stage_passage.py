"""How what was received enters a stage's forward pass, and how what must be sent leaves it.

The stage runs the module's own code from the beginning. At a port each received tensor takes the
place of the numberless one that a part of an earlier stage, or code between such parts, made here.
Tensors to be sent are met at ports as well, and the first block of the next stage ends the pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from stepladder.errors import ModelError
from stepladder.model.tracing.operation_recorder import tensors_in

from .crossings import EVERYWHERE, Crossing
from .find_stages import Stages
from .forward_record import Port, tensors_given
from .remote_activation import RemoteActivation, replace_everywhere


class StageEnd(BaseException):
    """Ends a forward pass where the next stage begins. Not an Exception: none means to catch it."""


@dataclass(frozen=True, slots=True)
class StagePorts:
    """Where a stage's tensors come in and go out."""

    arrivals: Mapping[Port, tuple[int, bool]]  # which of those received, and whether to copy it
    departures: Mapping[Port, int]  # which of those to send
    last: str = ""  # the next stage's first block, which ends the pass

    @property
    def watched(self) -> set[str]:
        """Parts whose arguments or results must be looked at."""
        return {port.part for port in (*self.arrivals, *self.departures)}


def find_ports(stages: Stages, stage: int) -> StagePorts:
    arrivals: dict[Port, tuple[int, bool]] = {}
    departures: dict[Port, int] = {}
    first = stages.blocks[stages.chunks[stage].start]
    if stage:
        for index, crossing in enumerate(stages.crossings[stage - 1]):
            arrivals[arrival(stages, stage, first, crossing)] = index, crossing.writes
    if stage == stages.last:
        return StagePorts(arrivals, departures)
    following = stages.blocks[stages.chunks[stage + 1].start]
    for index, crossing in enumerate(stages.crossings[stage]):
        departures[departure(stages, stage, following, crossing)] = index
    return StagePorts(arrivals, departures, following)


def arrival(stages: Stages, stage: int, first: str, crossing: Crossing) -> Port:
    """The best port for a tensor to come in: where no code of this stage's own must be watched."""

    def effort(port: Port) -> int:
        absent = stages.of_part(port.part) not in (stage, EVERYWHERE)
        if absent:
            return 0 if port.side == "out" else 1
        return 2 if port.part == first else 3

    return min(crossing.settled, key=effort)


def departure(stages: Stages, stage: int, following: str, crossing: Crossing) -> Port:
    """The best port to meet a tensor that must be sent."""

    def effort(port: Port) -> int:
        if port.part == following:
            return 0
        return 1 if stages.of_part(port.part) not in (stage, EVERYWHERE) else 2

    return min(crossing.ports, key=effort)


class Passage:
    """The tensors that pass through one stage in one forward pass."""

    def __init__(self, ports: StagePorts) -> None:
        self.ports = ports
        self.received: Sequence[Tensor] = ()
        self.leaving: dict[int, Tensor] = {}
        self.calls: Counter[str] = Counter()

    def begin(self, received: Sequence[Tensor]) -> None:
        self.received = received
        self.leaving.clear()
        self.calls.clear()

    def enter(self, part: str, args: Any, kwargs: Mapping[str, Any]) -> int:
        """Before a call of a part; how many there were before."""
        call = self.calls[part]
        self.calls[part] += 1
        self.pass_by(part, call, "in", tensors_given(args, kwargs))
        return call

    def leave(self, part: str, call: int, output: Any) -> None:
        """After a call of a part."""
        self.pass_by(part, call, "out", tensors_in(output))

    def pass_by(
        self, part: str, call: int, side: Literal["in", "out"], tensors: Sequence[Tensor]
    ) -> None:
        for leaf, tensor in enumerate(tensors):
            port = Port(part, call, side, leaf)
            if port in self.ports.arrivals and isinstance(tensor, RemoteActivation):
                replace_everywhere(tensor, self.incoming(port))
            if port in self.ports.departures:
                self.leaving[self.ports.departures[port]] = tensor

    def incoming(self, port: Port) -> Tensor:
        """A tensor that was received, not as torch's stage holds it, which nothing may write to."""
        index, copied = self.ports.arrivals[port]
        received = self.received[index]
        return received.clone() if copied else received.view_as(received)

    def sent(self) -> tuple[Tensor, ...]:
        """What the next stage is sent."""
        found = [self.leaving[index] for index in sorted(self.leaving)]
        remote = any(isinstance(tensor, RemoteActivation) for tensor in found)
        if remote or len(found) < len(self.ports.departures):
            raise self.changed_path("other tensors are made")
        return tuple(tensor.contiguous() for tensor in found)

    def changed_path(self, what: str) -> ModelError:
        return ModelError(
            "layout.pipeline",
            f"{what} before block '{self.ports.last}' than when the model was traced",
            "See that its code does not depend on numbers or on chance, or use pipeline=1.",
        )


class WatchedPart(nn.Module):
    """Around a part of this stage's own, whose arguments or results pass over a border.

    It passes for the part wherever that is asked for its class, its attributes or its children.
    """

    def __init__(self, name: str, part: nn.Module, passage: Passage) -> None:
        super().__init__()
        self.__dict__.update(_name=name, _passage=passage, _kind=part)
        self.part = part

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        call = self._passage.enter(self._name, args, kwargs)
        output = self.part(*args, **kwargs)
        self._passage.leave(self._name, call, output)
        return output

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        part = self.__dict__.get("_kind")
        return WatchedPart if part is None else type(part)

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """Those of the part, under the names that they have in it."""
        return self.part.named_modules(*args, **kwargs)

    def __getattr__(self, word: str) -> Any:
        if word == "part":
            return super().__getattr__(word)
        return getattr(self.part, word)
