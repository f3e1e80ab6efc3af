"""Copies of a run that are taken while it goes on.

[Note: when the copy is taken] Parameters and the optimizer's state change in `update` and nowhere
else. So a save in the background does not hold the run for the copy: it is taken beside the next
batch's passes, and the update waits for what is left of it. On a GPU it travels on a stream of its
own into pinned memory that is kept for the next save, and only the device waits. Buffers change in
a pass; they are copied at once, like the generators.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Copying:
    """Copies into host memory that are begun, and may not be overtaken by an update."""

    device: torch.device
    pairs: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # of host tensors, there, here
    copied: threading.Event = field(default_factory=threading.Event)
    sent: torch.cuda.Event | None = None  # after the last copy off a GPU

    def begin(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Start the copies off the device; those within host memory are left to `finish`."""
        away = [(there, here) for there, here in pairs if here.device.type == "cuda"]
        self.pairs = [(there, here) for there, here in pairs if here.device.type != "cuda"]
        if away:
            beside = torch.cuda.Stream(self.device)
            beside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(beside):
                for there, here in away:
                    there.copy_(here, non_blocking=True)
                self.sent = beside.record_event()

    def finish(self) -> None:
        """Copy what is left and wait for the rest: for whoever writes it."""
        try:
            for there, here in self.pairs:
                there.copy_(here)
            if self.sent is not None:
                self.sent.synchronize()
        finally:
            self.pairs = []
            self.copied.set()

    def hold(self) -> None:
        """Return once the run may change: the host waits for its own copies, the GPU for its."""
        if self.sent is not None:
            torch.cuda.current_stream(self.device).wait_event(self.sent)
        if self.pairs:
            self.copied.wait()
