"""Copying batches to the device while the previous step computes.

Workers pin the batches. The copy runs on its own CUDA stream and the step's stream waits for the
copy's event, so the host never waits.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from stepladder.data.batch import Batch


class DeviceCopier:
    """Copies batches to one device, or leaves them if there is none."""

    def __init__(self, device: torch.device | str | None) -> None:
        self.device = None if device is None else torch.device(device)
        self.copies = self.device is not None and self.device.type == "cuda"
        self.pins = self.copies or (self.device is None and torch.cuda.is_initialized())
        # A worker thread starts on device 0: pinning would create a context there on every rank.
        self._home = self._index() if self.pins else None
        self._stream = torch.cuda.Stream(self._home) if self.copies else None

    def prepare(self, batch: Batch) -> Batch:
        """Pin the batch, in the worker thread."""
        with torch.cuda.device(self._home) if self.pins else nullcontext():
            return batch.pin() if self.pins else batch

    def start_copy(self, batch: Batch) -> tuple[Batch, Any]:
        """Start the copy; returns the batch and the event of its end."""
        if self.device is None or self._stream is None:
            return (batch if self.device is None else batch.to(self.device)), None
        with torch.cuda.stream(self._stream):
            return batch.to(self.device, non_blocking=True), self._stream.record_event()

    def finish_copy(self, sent: tuple[Batch, Any]) -> Batch:
        """Make the current stream wait for the copy."""
        batch, copied = sent
        if copied is not None:
            current = torch.cuda.current_stream(self._home)
            current.wait_event(copied)
            for tensor in batch.tensors():
                # Else the allocator reuses its memory once the copy's stream is done.
                tensor.record_stream(current)
        return batch

    def _index(self) -> int:
        index = None if self.device is None else self.device.index
        return torch.cuda.current_device() if index is None else index
