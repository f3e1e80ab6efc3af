"""The way to the device: batches pinned by the workers and copied beside the step.

The copy runs on a stream of its own, so that it overlaps the step that is still computing; the
step's stream waits for the copy's event, never the host.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from stepladder.data.batch import Batch


class Courier:
    """Carries batches to one device, or nowhere."""

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = None if device is None else torch.device(device)
        self.moves = self.device is not None and self.device.type == "cuda"
        self.pins = self.moves or (self.device is None and torch.cuda.is_initialized())
        # A worker thread begins on device 0: pinning would open a context there in every rank.
        self._home = self._index() if self.pins else None
        self._stream = torch.cuda.Stream(self._home) if self.moves else None

    def prepare(self, batch: Batch) -> Batch:
        """Pin, in the worker."""
        with torch.cuda.device(self._home) if self.pins else nullcontext():
            return batch.pin() if self.pins else batch

    def send(self, batch: Batch) -> tuple[Batch, Any]:
        """Begin the copy."""
        if self.device is None or self._stream is None:
            return (batch if self.device is None else batch.to(self.device)), None
        with torch.cuda.stream(self._stream):
            return batch.to(self.device, non_blocking=True), self._stream.record_event()

    def receive(self, sent: tuple[Batch, Any]) -> Batch:
        """Make the current stream wait for the copy."""
        batch, copied = sent
        if copied is not None:
            current = torch.cuda.current_stream(self._home)
            current.wait_event(copied)
            for tensor in batch.tensors():
                tensor.record_stream(
                    current
                )  # else its memory is reused once the side stream is done
        return batch

    def _index(self) -> int:
        index = None if self.device is None else self.device.index
        return torch.cuda.current_device() if index is None else index
