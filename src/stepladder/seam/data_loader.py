"""The end of a DataLoader's worker processes."""

from __future__ import annotations

from typing import Any

from .lookup import find, has

END = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers"


def end_workers(batches: Any) -> None:
    """End the processes behind an iterator now; without the name they end with the iterator."""
    if has(END):
        find(END)(batches)
