"""What earlier trials found, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from stepladder.data import iter_tensors
from stepladder.model.structure import describe_structure
from stepladder.plan import Plan
from stepladder.record.user_cache import cache_path, write_atomically
from stepladder.train.step_batch import as_batch
from stepladder.version import VERSION

from .trial import Trial, words_of

KEPT = 200  # answers for one device, the newest ones


def key_of(module: nn.Module, loss: Any, batch: Any, plans: list[Plan]) -> str:
    """Names what the trials' times depend on."""
    made = as_batch(batch, 0)
    tensors = [(name, list(one.shape), str(one.dtype), one.requires_grad)
               for name, one in (*module.named_parameters(), *module.named_buffers())]  # fmt: skip
    read = [(list(one.shape), str(one.dtype)) for one in iter_tensors((made.inputs, made.targets))]
    how = loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__qualname__)
    tried = [(words_of(plan), plan.optimizer.name) for plan in plans]
    facts = [describe_structure(module), tensors, read, how, tried, torch.__version__, VERSION]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def recall(key: str, device: str) -> dict[str, Any] | None:
    """The answer that was kept: the plan's words, the reason, and the seconds of a step."""
    found = read_all(device).get(key)
    if not isinstance(found, dict) or not {"plan", "because", "date"} <= found.keys():
        return None
    return found if isinstance(found.get("step_seconds"), float) else None


def keep(key: str, device: str, trials: list[Trial], chosen: Trial, because: str) -> None:
    """Keep an answer; a cache that cannot be written costs only the next start."""
    answer = {
        "plan": words_of(chosen.plan),
        "because": because,
        "step_seconds": chosen.step_seconds,
        "date": time.strftime("%Y-%m-%d"),
        "tried": [str(trial) for trial in trials],
    }
    kept = {**read_all(device), key: answer}
    path = cache_path("tuned", device)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(dict(list(kept.items())[-KEPT:]), indent=1))


def read_all(device: str) -> dict[str, Any]:
    try:
        found = json.loads(cache_path("tuned", device).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
