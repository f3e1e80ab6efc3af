"""`certify` writes down what runs compute, and `check_certificate` replays it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stepladder.errors import RecordError
from stepladder.launch import Ranks
from stepladder.train.checkpointing.rng_state import untouched
from stepladder.train.user_code.user_code import UserCode
from stepladder.verify.course import Course
from stepladder.verify.live_module import Loss, Model, live_subject
from stepladder.verify.subjects import Subject, find_subject

from .certificate import Certificate
from .record_run import made_with, record_run
from .replay import Replay, replay

COULD_NOT_RUN = ("refused", "BROKE")


def certify(model: str, courses: Sequence[Course], verdicts: Sequence[str]) -> Certificate:
    """Take every run once more and keep what it computes; one that could not run is left out."""
    kept = [pair for pair in zip(courses, verdicts) if pair[1] not in COULD_NOT_RUN]
    if not kept:
        problem = f"none of the {len(verdicts)} runs could be taken"
        raise RecordError("certificate", problem, "Certify plans that are not refused.")
    ranks = max(course.plan.layout.num_ranks for course, _ in kept)
    with untouched(torch.device("cpu")), Ranks(ranks) as pool:
        runs = tuple(record_run(pool, course, verdict) for course, verdict in kept)
    first = kept[0][0]
    return Certificate(model, dict(first.subject.named), made_with(first.device), runs)


def check_certificate(
    path: str | Path, model: Model | None = None, batch: Any = None, *, loss: Loss = None
) -> Replay:
    """Replay a certificate on this machine: is it the same to the bit, within tolerance, or not?

    Args:
        path: a file that `verdict.certify` or `stepladder verify parity --certificate` wrote.
        model, batch, loss: as in `parity`, for a module of your own; a built-in model and code
            that was named by its file are found by what the certificate says.

    >>> import tempfile, torch, stepladder as sl
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> batch = torch.randn(8, 4), torch.randint(0, 2, (8,))
    >>> verdict = sl.verify.parity(
    ...     model, "fp32", batch, loss="cross_entropy", optimizer="sgd lr=0.1", steps=2
    ... )
    >>> path = verdict.certify(tempfile.mkdtemp() + "/proof.json")
    >>> sl.verify.check_certificate(path, model, batch, loss="cross_entropy").rows[0].verdict
    'identical bits'
    """
    certificate = Certificate.read(path)
    if model is not None:
        return replay(certificate, live_subject(model, batch, loss))
    return replay(certificate, named_subject(certificate, path))


def named_subject(certificate: Certificate, path: str | Path) -> Subject:
    """What the certificate's texts name."""
    texts = certificate.subject
    if "model" not in texts:
        raise RecordError(
            "certificate",
            f"{path} is of {certificate.model}, a module that no text names",
            "Call sl.verify.check_certificate with that module, its batch and its loss.",
        )
    return find_subject(UserCode(**texts))
