"""What a save in the background takes of the host's memory."""

import threading
from mmap import PAGESIZE

import psutil
import pytest
import torch

from stepladder.train import EMA, climb
from stepladder.train.checkpointing.snapshot import forecast_snapshot, host_bytes
from tests.train.toys import pairs


def peak_of(act) -> int:
    """Bytes that the process grew by at most."""
    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    seen = [before]

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(process.memory_info().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    act()
    done.set()
    thread.join()
    return max(seen) - before


@pytest.mark.parametrize(("width", "layers"), [(1024, 3), (16, 250)])
def test_a_save_in_the_background_stays_within_what_was_forecast(tmp_path, width, layers):
    linears = [torch.nn.Linear(width, width) for _ in range(layers)]
    module = torch.nn.Sequential(*linears, torch.nn.Linear(width, 5))
    run = climb(module, loss="cross_entropy", optimizer="adamw lr=0.01", plan="fp32")
    run.step(pairs(1, width=width)[0]).read()
    forecast = forecast_snapshot(run)

    def save() -> None:
        run.save(tmp_path, wait=False)
        run.finish_saving()

    assert peak_of(save) <= forecast
    assert peak_of(save) <= forecast
    kept = run.saver.buffers.values()
    added = forecast - sum(tensor.nbytes for tensor in kept)
    assert added < len(kept) * 15 * 2**10 + 6 * 2**20  # or anything would be within it


def test_what_is_registered_is_part_of_the_forecast():
    run = climb(
        torch.nn.Linear(512, 512), loss="squared_error", optimizer="sgd lr=0.1", plan="fp32"
    )
    before = forecast_snapshot(run)
    EMA(run)
    assert forecast_snapshot(run) - before >= 512 * 512 * 4


def test_pinned_memory_comes_in_powers_of_two():
    assert host_bytes(5 * 2**20, pinned=True) == 8 * 2**20
    assert host_bytes(4 * 2**20, pinned=True) == 4 * 2**20
    assert host_bytes(5 * 2**20, pinned=False) == 5 * 2**20 + 2 * PAGESIZE
