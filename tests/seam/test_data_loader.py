"""A DataLoader's worker processes are told to end, and how they do no longer matters."""

import os
from multiprocessing.util import Finalize

import torch
from torch.utils.data import DataLoader

from stepladder.seam.data_loader import end_workers


class Aborting:
    """Samples whose worker process aborts when it ends."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        Finalize(None, os.abort, exitpriority=0)
        return torch.tensor([index])


def test_a_worker_that_aborts_on_its_way_out_ends_nobody_else():
    loaded = DataLoader(Aborting(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    batches = iter(loaded)
    next(batches)
    (worker,) = batches._workers
    end_workers(batches)
    worker.join(60)
    assert worker.exitcode == -6
