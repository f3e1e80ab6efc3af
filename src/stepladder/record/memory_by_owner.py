"""Peak memory of the fullest rank in bytes by owner, forecast or measured."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at the peak, by owner."""

    parameters: int = 0  # as the optimizer stores them
    working: int = 0  # copies in the compute type, or gathered for use
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0  # saved by forward for backward
    logits: int = 0  # the head's output and its gradient, which are large with large vocabularies
    communication: int = 0  # buffers of collectives
    temporary: int = 0  # everything else alive at the peak
    context: int = 0  # of the CUDA runtime: driver, kernels, libraries
    reserved: int = 0  # by the allocator, beyond what is in use

    @property
    def allocated_bytes(self) -> int:
        """The bytes of tensors at the peak."""
        return self.peak_bytes - self.context - self.reserved

    @property
    def reserved_bytes(self) -> int:
        """The bytes that the allocator reserved at the peak, as torch reports it."""
        return self.peak_bytes - self.context

    @property
    def peak_bytes(self) -> int:
        """The bytes in use on the device."""
        return sum(self.by_owner().values())

    @property
    def state_bytes(self) -> int:
        """The bytes that persist between steps."""
        return self.parameters + self.gradients + self.optimizer

    def by_owner(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def largest_owner(self) -> tuple[str, int]:
        return max(self.by_owner().items(), key=lambda item: item[1])

    def __sub__(self, other: Memory) -> dict[str, int]:
        """Difference by owner: measured minus forecast."""
        return {owner: size - other.by_owner()[owner] for owner, size in self.by_owner().items()}
