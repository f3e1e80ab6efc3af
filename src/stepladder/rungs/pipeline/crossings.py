"""What must be sent from one pipeline stage to the next, and which stage holds each part.

Every stage runs the module's own forward on the whole micro-batch, so whatever does not depend on
other stages' parameters (masks, positions) each computes for itself. At the border between two
stages, a tensor crosses if it depends on parameters of a stage before it and something after the
border reads it: one residual stream in most models, its parts in others, skip connections in a
U-Net, an encoder's output for the blocks of a decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from stepladder.errors import ModelError

from .forward_record import ForwardRecord, Gate, Operation, Passing, Port

EVERYWHERE = -1  # in place of a stage: all of them hold the part, and add up its gradients


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that is sent over one border."""

    ports: tuple[Port, ...]  # where it passes before the border, or into the block at the border
    settled: tuple[Port, ...]  # of these, the ports after which nothing before the border writes it
    writes: bool  # whether something after the border changes it in place


def stage_at(chunks: Sequence[range], entered: int) -> int:
    """The stage whose code runs once so many blocks have been entered."""
    return next(stage for stage, blocks in enumerate(chunks) if max(entered - 1, 0) in blocks)


def written_buffers(record: ForwardRecord) -> dict[str, int]:
    """For each buffer that is written, how many blocks had been entered when it was last."""
    entered, found = 0, dict[str, int]()
    for event in record.events:
        entered += isinstance(event, Gate)
        for number in event.writes if isinstance(event, Operation) else ():
            found.update(dict.fromkeys(record.buffers.get(record.storage[number], ()), entered))
    return found


def last_writers(record: ForwardRecord, chunks: Sequence[range]) -> dict[str, int]:
    """For each buffer that is written in the pass, the stage whose code does so last."""
    return {name: stage_at(chunks, entered) for name, entered in written_buffers(record).items()}


def place_parts(
    uses: Mapping[str, Collection[int]], chunks: Sequence[range], shared: Collection[str] = ()
) -> dict[str, int]:
    """The stage of each part outside the blocks: where it is used, or all.

    Args:
        uses: for each part, how many blocks have been entered when it is used.
        shared: parts that all stages hold, wherever they are used.
    """
    homes = {}
    for part, entered in uses.items():
        stages = {stage_at(chunks, count) for count in entered}
        homes[part] = EVERYWHERE if part in shared or len(stages) > 1 else stages.pop()
    return homes


def find_crossings(
    record: ForwardRecord,
    blocks: Sequence[str],
    chunks: Sequence[range],
    shareable: Callable[[str], bool],
) -> tuple[dict[str, int], tuple[tuple[Crossing, ...], ...]]:
    """The stage of each part outside the blocks, and what crosses each border.

    A tensor that depends on parameters alone is not sent with every micro-batch: where all stages
    can hold the parts that make it, they do.
    """
    shared: set[str] = set()
    while True:
        homes = place_parts(record.uses(), chunks, shared)
        flow = Flow(record, blocks, homes)
        borders = [flow.over_border(blocks[chunk.start]) for chunk in chunks[1:]]
        further = set().union(*(flow.parameters_alone(found) for found in borders)) - shared
        further = {part for part in further if shareable(part)}
        if not further:
            break
        shared |= further
    crossings = tuple(
        flow.crossings(blocks[chunk.start], found) for chunk, found in zip(chunks[1:], borders)
    )
    return homes, crossings


class Flow:
    """Which parts each tensor depends on, and who reads it later."""

    def __init__(
        self, record: ForwardRecord, blocks: Sequence[str], homes: Mapping[str, int]
    ) -> None:
        self.record, self.blocks = record, frozenset(blocks)
        self.owned = self.blocks | {part for part, home in homes.items() if home != EVERYWHERE}
        self.gates = record.gates()

    def sources(self, gate: int) -> dict[int, frozenset[str]]:
        """For each storage that is there at a gate, the parts that it depends on; "": batch."""
        found = {key: frozenset(parts) for key, parts in self.record.parameters.items()}
        found.update(dict.fromkeys(self.record.inputs, frozenset([""])))
        nothing: frozenset[str] = frozenset()
        for event in self.record.events[:gate]:
            if isinstance(event, Operation):
                given = nothing.union(*(found.get(s, nothing) for s in self.storages(event.reads)))
                for storage in self.storages((*event.makes, *event.writes)):
                    found[storage] = found.get(storage, nothing) | given
        return found

    def storages(self, tensors: Collection[int]) -> set[int]:
        return {self.record.storage[number] for number in tensors}

    def read_after(self, gate: int) -> set[int]:
        """The tensors that the result, or a buffer, is computed from after a gate."""
        live = self.storages(self.record.answer) | self.record.buffers.keys()
        read = set(self.record.answer)
        for event in reversed(self.record.events[gate:]):
            if isinstance(event, Operation) and live & self.storages((*event.makes, *event.writes)):
                live |= self.storages(event.reads)
                read |= {*event.reads}
        return read

    def over_border(self, block: str) -> dict[int, frozenset[str]]:
        """The tensors that cross the border before a block, with what they depend on."""
        gate = self.gates[block]
        sources, before = self.sources(gate), self.there_before(gate)
        found = {}
        for number in sorted(self.read_after(gate) & before):
            storage = self.record.storage[number]
            depends = sources.get(storage, frozenset())
            if depends & self.owned and storage not in self.record.parameters:
                found[number] = depends
        return found

    def there_before(self, gate: int) -> set[int]:
        there: set[int] = set()
        for event in self.record.events[:gate]:
            if isinstance(event, Operation):
                there |= {*event.reads, *event.makes}
            elif isinstance(event, Passing):
                there.add(event.tensor)
        return there

    def parameters_alone(self, border: Mapping[int, frozenset[str]]) -> set[str]:
        """The parts that make what crosses without depending on the batch."""
        found: set[str] = set()
        for depends in border.values():
            if "" not in depends and not depends & self.blocks:
                found |= depends
        return found

    def crossings(self, block: str, border: Collection[int]) -> tuple[Crossing, ...]:
        gate, found = self.gates[block], []
        for number in border:
            storage = self.record.storage[number]
            at = {
                event.port: index
                for index, event in enumerate(self.record.events[:gate])
                if isinstance(event, Passing) and event.tensor == number
            }
            if not at:
                raise self.hidden(block)
            written = self.written(storage)
            last = max((index for index in written if index < gate), default=-1)
            settled = tuple(port for port, index in at.items() if index > last)
            later = any(index > gate for index in written)
            if later and sum(self.record.storage[n] == storage for n in border) > 1:
                raise self.hidden(block)
            found.append(Crossing(tuple(at), settled, later))
        return tuple(found)

    def written(self, storage: int) -> list[int]:
        """Where in the list a storage that was there is changed."""
        return [
            index
            for index, event in enumerate(self.record.events)
            if isinstance(event, Operation) and storage in self.storages(event.writes)
        ]

    def hidden(self, block: str) -> ModelError:
        return ModelError(
            "layout.pipeline",
            f"what follows the border before block '{block}' of {self.record.model} reads a tensor "
            "of earlier parts that goes into no part and comes out of none",
            "Let a block take or return it, or use pipeline=1, and shard or tensor instead.",
        )
