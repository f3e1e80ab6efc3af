"""Bytes on the fullest rank, by owner: the planner forecasts one, the profiler measures one."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Memory:
    parameters: int = 0  # as the optimizer keeps them
    working: int = 0  # copies in the type that is computed in, or gathered for use
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # kept by forward for backward
    logits: int = 0  # the head's output and its gradient, which large vocabularies make an owner
    communication: int = 0  # buffers collectives read and write
    temporary: int = 0  # alive at the peak and owned by no one above
    context: int = 0  # the runtime's own: driver, kernels, libraries
    reserved: int = 0  # held by the allocator beyond what is in use

    @property
    def allocated_bytes(self) -> int:
        """What tensors hold at the peak."""
        return self.peak_bytes - self.context - self.reserved

    @property
    def reserved_bytes(self) -> int:
        """What the allocator holds at the peak, as torch reports it."""
        return self.peak_bytes - self.context

    @property
    def peak_bytes(self) -> int:
        """What the device shows as taken."""
        return sum(self.by_owner().values())

    @property
    def state_bytes(self) -> int:
        """What lives from step to step."""
        return self.parameters + self.gradients + self.optimizer

    def by_owner(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def largest_owner(self) -> tuple[str, int]:
        return max(self.by_owner().items(), key=lambda item: item[1])

    def __sub__(self, other: Memory) -> dict[str, int]:
        """Difference by owner: measured minus forecast."""
        return {owner: size - other.by_owner()[owner] for owner, size in self.by_owner().items()}
