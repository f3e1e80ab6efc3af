"""Ray itself runs a 2-rank job, loses a worker, and the run ends with the same bits."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .ray_cluster import RayCluster, lose_worker, missing, workers
from .same import SAVE_EVERY, STEPS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


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


def test_a_run_that_loses_a_machine_goes_on_with_the_one_that_is_left(place, monkeypatch):
    alike = ("--model.dropout", "0")  # which numbers a rank draws depends on how many there are
    place.pause(0)
    whole = place.launch("local", "ray-whole", "--ranks-per-node", "2", *alike)
    assert whole.wait() == 0, whole.said()
    with RayCluster() as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        place.pause(0.15)
        job = place.launch("ray", "ray-elastic", "--nodes", "1:2", *alike)
        job.trains(7)
        place.pause(0)
        cluster.lose(1)
        assert job.wait() == 0, job.said() + (job.run.folder / "ray.log").read_text()[-3000:]
    starts = job.run.entries("start")
    assert [start["ranks"] for start in starts] == [2, 1] and starts[1]["step"] >= SAVE_EVERY
    assert job.run.committed() == STEPS
    losses, wanted = job.run.losses(), whole.run.losses()
    assert losses.keys() == wanted.keys()
    for step, (loss,) in wanted.items():  # on one rank sums are formed in another order
        assert sorted(losses[step]) == pytest.approx([loss] * len(losses[step]), rel=1e-5)
