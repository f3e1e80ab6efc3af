"""A run's journal: opened with its trackers and device sampler, and the environment it records.

The environment holds versions, the device, the command and the commit of the folder it was started
in; words that look like a secret are left out of the command.
"""

from __future__ import annotations

import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from stepladder.track import Target, TrackedJournal, open_journal
from stepladder.track.device_sampler import DeviceSampler
from stepladder.train import Run
from stepladder.version import VERSION
from stepladder.world import World

GIT_SECONDS = 5
SECRET = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
LOGIN = re.compile(r"(?<=://)[^/@\s]+@")  # user:password@ of an address


def open_run_journal(
    folder: Path, targets: Sequence[Target], run: Run, stack: ExitStack
) -> TrackedJournal:
    """The run's journal: every entry goes to the trackers too, and its device is sampled."""
    journal = stack.enter_context(open_journal(folder, targets))
    run.events += [f"metrics are served at {address}" for address in journal.addresses]
    card = card_of(run.world.device)
    stack.enter_context(DeviceSampler(journal.write, lambda: run.index, card=card))
    return journal


def card_of(device: torch.device) -> str | None:
    """The card's name for the driver's library; None on a processor or where torch has none."""
    if device.type != "cuda":
        return None
    unique = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{unique}" if unique else None


def environment(world: World) -> dict[str, Any]:
    """Where a run was started, with what, and from which commit."""
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "stepladder": VERSION,
        "torch": torch.__version__,
        "runtime": f"CUDA {torch.version.cuda}" if torch.version.cuda else None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": socket.gethostname(),
        "device": f"{device.type}: {name}",
        "ranks": world.place.num_ranks,
        "command": shlex.join(["stepladder", *without_secrets(sys.argv[1:])]),
        "commit": commit(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command as it may be shown to others."""
    shown: list[str] = []
    hide = False
    for word in words:
        name, equals, _ = word.partition("=")
        telling = bool(SECRET.search(name)) and name.startswith("-")
        shown.append(
            "***" if hide else f"{name}=***" if telling and equals else LOGIN.sub("", word)
        )
        hide = telling and not equals
    return shown


def commit() -> str | None:
    """The commit of the folder this was started in, and whether files differ from it."""
    head = git("rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{head} (changed)" if changed else head


def git(*words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
