"""A real Slurm cluster runs a 2-rank job, takes it off for another one, and it goes on exactly."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .same import STEPS
from .slurm_cluster import SlurmCluster, make_room, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return cluster


def test_a_job_that_makes_room_for_another_goes_back_and_ends_with_the_same_bits(slurm, place):
    reference = place.reference()
    job = make_room(place, slurm, "preempted")
    assert job.process.returncode == 0, job.said() + slurm.logs()
    told = job.said()
    assert "job 1: RUNNING" in told and ", start 2" in told and "SIGTERM: saving at step" in told
    starts = job.run.entries("start")
    assert [start["ranks"] for start in starts] == [2, 2]
    assert 0 < starts[1]["step"] < STEPS  # it went on, and not from the beginning
    job.assert_same(reference)
    steps = [entry["step"] for entry in job.run.entries("step")]
    assert steps == sorted(set(steps))  # nothing was lost: no step was taken twice
    closing = json.loads(told[told.index("{") :])
    assert closing["exit code"] == 0 and closing["figures"]["steps"] == STEPS


def test_inside_an_allocation_its_machines_are_used(slurm, place):
    place.pause(0)
    job = place.launch("slurm", "inside", "--nodes", "2", before=["salloc", "--nodes=2"])
    assert job.wait() == 0, job.said() + slurm.logs()
    assert "starting on its machines" in job.said()
    job.assert_same(place.reference())


def test_a_cancelled_launcher_cancels_its_job_after_saving(slurm, place):
    place.pause(0.3)
    job = place.launch("slurm", "cancelled", "--nodes", "2")
    job.trains(5)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.wait() == 130, job.said()
    assert "cancelling job" in job.said() and "CANCELLED" in job.said()
    saved = job.run.committed()
    assert saved == job.run.entries("summary")[-1]["steps"] and 5 < saved < STEPS


def test_what_the_cluster_has_not_is_one_line(slurm, place):
    job = place.launch("slurm", "no-partition", "--nodes", "2", "--partition", "none")
    assert job.wait() == 2
    (line,) = job.said().splitlines()
    assert line.startswith("slurm: sbatch refused the job (Batch job submission failed: Invalid p")


def test_a_job_that_is_too_large_does_not_wait_for_ever(slurm, place):
    job = place.launch("slurm", "too-large", "--nodes", "6")
    assert job.wait() == 2
    *_, waits, refused = job.said().splitlines()
    assert waits.endswith("PENDING (PartitionConfig)")
    assert "would wait for ever (PartitionConfig), and was cancelled." in refused
    assert slurm.ask("squeue", "--noheader") == ""
