"""The end of a DataLoader's worker processes."""

from __future__ import annotations

from typing import Any

from .lookup import find, has

END = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers"


def end_workers(batches: Any) -> None:
    """End the processes behind an iterator now; without the name they end with the iterator."""
    if not has(END):
        return
    try:
        find(END)(batches)
    except RuntimeError as error:
        # One that was told to end may abort on its way out, as forks of a process with threads do.
        if "killed by signal" not in str(error):
            raise
