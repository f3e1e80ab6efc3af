"""Mistakes planted in the real objects, inside the ranks: what a comparison must be able to see.

Each is a context; `faulty(name, course, weights)` is a rank's part of a course within it.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from torch.futures import Future

from stepladder.rungs import LossScale
from stepladder.rungs.pipeline.pipeline import Pipeline
from stepladder.train import build_run
from stepladder.train import run as runs
from stepladder.verify import Subject
from stepladder.verify.parity_trial import learn_rank
from stepladder.world import Place, World

CLIMB = sys.modules["stepladder.rungs.climb"]  # the package's function of that name hides it


@contextmanager
def gradient_sync_changed(change):
    wrap = CLIMB.wrap_data_parallel
    with patch.object(CLIMB, "wrap_data_parallel", lambda *args: change(wrap(*args))):
        yield


def missing_factor():
    """Averaged where it should be added up: every gradient a constant factor too small."""
    return gradient_sync_changed(lambda gradient_sync: replace(gradient_sync, ways=1))


def dropped_all_reduce():
    """Every bucket of gradients comes back as it left, never having met another rank's."""

    def keep(state, bucket):
        unsent = Future()
        unsent.set_result(bucket.buffer())
        return unsent

    def drop(gradient_sync):
        gradient_sync.module.register_comm_hook(None, keep)
        return gradient_sync

    return gradient_sync_changed(drop)


@contextmanager
def wrong_shuffle():
    """Each rank shuffles by a seed of its own, so that some samples come twice and some never."""
    feed, rank = runs.feed, Place.from_environment().rank
    with patch.object(runs, "feed", lambda *a, seed=0, **how: feed(*a, seed=seed + rank, **how)):
        yield


@contextmanager
def same_share():
    """Every rank reads the first rank's rows."""
    with patch.object(World, "data_index", 0):
        yield


@contextmanager
def doubled_loss_scale():
    scaled = LossScale.scaled
    with patch.object(LossScale, "scaled", lambda self, loss: 2 * scaled(self, loss)):
        yield


@contextmanager
def other_weights():
    """The last rank starts from weights of its own, and nobody makes them alike."""
    made, place = Subject.made, Place.from_environment()

    def differently(self):
        module, samples, loss = made(self)
        if place.rank == place.num_ranks - 1:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.01)
        return module, samples, loss

    alone = patch.object(CLIMB, "broadcast_parameters", lambda *args: None)
    with patch.object(Subject, "made", differently), alone:
        yield


@contextmanager
def slices_not_sent():
    """ZeRO 1 without its last act: each rank knows only the slices it updated itself."""
    home = sys.modules["stepladder.rungs.data_parallel.optimizer_shards"]
    with patch.object(home, "send_slices", lambda *args: None):
        yield


@contextmanager
def own_norm():
    """The gradient norm of a rank's own slices taken for the whole's."""
    measure = build_run.measure_norms

    def alone(shards, world):
        return measure([replace(shard, axes=()) for shard in shards], world)

    with patch.object(build_run, "measure_norms", alone):
        yield


@contextmanager
def share_not_added_up():
    """Each rank of a cut keeps its own share of the gradient of what all of them hold: norms."""
    local = sys.modules["stepladder.rungs.tensor.local_compute"]
    local_of = local.local_of
    with patch.object(local, "local_of", lambda parameter, shares: local_of(parameter, False)):
        yield


@contextmanager
def dropped_micro_batch():
    """A pipeline that never runs its last micro-batch."""
    passes = Pipeline.micro_batches
    with patch.object(Pipeline, "micro_batches", lambda self, batch: passes(self, batch)[:-1]):
        yield


FAULTS = {  # name: (the context, a plan it does harm to)
    "missing factor": (missing_factor, "fp32 ddp"),
    "missing factor, sharded": (missing_factor, "fp32 zero3"),
    "dropped all-reduce": (dropped_all_reduce, "fp32 ddp"),
    "wrong shuffle": (wrong_shuffle, "fp32 ddp"),
    "same share": (same_share, "fp32 zero2"),
    "doubled loss scale": (doubled_loss_scale, "fp32 ddp"),
    "doubled loss scale, fp16": (doubled_loss_scale, "fp16 ddp"),
    "other weights": (other_weights, "fp32 zero3"),
    "slices not sent": (slices_not_sent, "fp32 zero1"),
    "own norm": (own_norm, "fp32 zero3"),
    "share not added up": (share_not_added_up, "fp32 tensor=2"),
    "dropped micro-batch": (dropped_micro_batch, "fp32 pipeline=2"),
}


def faulty(name, course, weights):
    with FAULTS[name][0]():
        return learn_rank(course, weights)
