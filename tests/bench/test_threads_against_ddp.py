"""DP against DDP: all three ways train alike, and the row says what really ran."""

import pytest
import torch

from stepladder.bench import DataParallelWorkload, measure_data_parallel
from stepladder.bench.threads_against_ddp import run_threads
from stepladder.errors import PlanError
from tests.ranks import POOL


@pytest.mark.skipif(torch.cuda.device_count() >= 2, reason="nn.DataParallel itself runs there")
def test_the_three_ways_train_to_the_same_loss_and_say_what_they_are():
    trial = DataParallelWorkload("gpt:layers=1,hidden=16,heads=2,vocab=256", 4, 16, 2, "cpu", 6)
    rows = list(measure_data_parallel(POOL, trial))
    assert [row.name for row in rows] == [
        "one process",
        "2 threads by hand, as nn.DataParallel does",
        "DistributedDataParallel",
    ]
    assert [row.processes for row in rows] == [1, 1, 2]
    assert rows[1].loss == pytest.approx(rows[0].loss, rel=1e-6)
    assert rows[2].loss == pytest.approx(rows[0].loss, rel=1e-6)
    assert all(row.samples_per_second == pytest.approx(4 / row.step_ms * 1e3) for row in rows)


def test_images_are_trained_too():
    seconds, loss = run_threads(DataParallelWorkload("mlp-tiny", 4, 16, 2, "cpu", 1))
    assert seconds > 0 and 0 < loss < 10


def test_a_batch_that_does_not_divide_names_the_nearest():
    with pytest.raises(PlanError, match=r"7 samples do not divide over 2 ranks. Nearest .* 6 or 8"):
        list(measure_data_parallel(POOL, DataParallelWorkload("mlp-tiny", 7, 16, 2)))
    with pytest.raises(PlanError, match=r"1 samples do not divide over 2 ranks. Nearest .*: 2\."):
        list(measure_data_parallel(POOL, DataParallelWorkload("mlp-tiny", 1, 16, 2)))
