"""Ray itself runs a 2-rank job, loses a worker, and the run ends with the same bits."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .ray_cluster import lose_worker, missing, workers
from .same import SAVE_EVERY, STEPS

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def test_a_run_that_loses_a_worker_goes_on_from_its_checkpoint_with_the_same_bits(place):
    reference = place.reference()
    job = lose_worker(place, "ray-killed")
    log = (job.run.folder / "ray.log").read_text(errors="replace")[-3000:]
    assert job.process.returncode == 0, job.said() + log
    starts = job.run.entries("start")
    assert len(starts) == 2 and starts[1]["step"] >= SAVE_EVERY
    job.assert_same(reference)
    told = job.said()
    closing = json.loads(told[told.index("\n{") :])
    assert closing["exit code"] == 0 and closing["figures"]["steps"] == STEPS


def test_a_launcher_that_is_asked_to_stop_has_the_ranks_save_and_leaves_nobody(place):
    place.pause(0.3)
    job = place.launch("ray", "ray-stopped", "--ranks-per-node", "2")
    job.trains(6)
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait() == 143, job.said()
    assert "SIGTERM: saving at step" in job.said()
    saved = job.run.committed()
    assert saved == job.run.entries("summary")[-1]["steps"] and 6 <= saved < STEPS
    assert workers(job) == {}
