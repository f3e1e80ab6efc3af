"""A run as a Ray job: the script that Ray is given, and what each of its workers does.

Ray's TorchTrainer places the workers, notices one that is lost and starts all of them again, as
often as `restarts`; with a range of machines it goes on with those there are. A worker does not
train itself: it starts its rank as a process of its own, as every launcher does, so that a run is
the same run here, and its last checkpoint is where a new start goes on. Ray's own process group
carries one number: the port of the store in which the ranks meet. The rank ends with its worker.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stepladder.errors import LostRank, PlanError
from stepladder.launch.local.first_failure import FAILED, MISTAKE, STOPPED
from stepladder.launch.local.rank_process import PARENT_DEATH_SIGNAL
from stepladder.launch.run_request import Request

STOP = "stop"  # in the folder of the ranks' words: everybody ends
POLL_SECONDS = 0.2


def ray_script(request: Request) -> str:
    """What Ray is given: a script for `python`, or for `ray job submit`."""
    least, most = request.least * request.ranks, request.most * request.ranks
    held = request.resources
    share: dict[str, float] = {"CPU": request.cpus / request.ranks}
    if held.gpus > request.ranks and held.gpus % request.ranks:
        problem = f"{held.gpus} do not divide among {request.ranks} ranks, and Ray gives whole ones"
        remedy = f"Use --gpus-per-node {request.ranks}."
        raise PlanError("gpus-per-node", problem, remedy)
    if held.gpus:
        share["GPU"] = held.gpus / request.ranks
    if held.memory_bytes:
        share["memory"] = held.memory_bytes // request.ranks
    settings = {
        "words": list(request.rank_words),
        "folder": str(request.folder),
        "directory": str(request.directory),
    }
    return "\n".join(
        [
            "from ray.train import FailureConfig, RunConfig, ScalingConfig",
            "from ray.train.torch import TorchConfig, TorchTrainer",
            "",
            "from stepladder.launch.ray.ray_script import ray_exit_code, ray_worker",
            "",
            "trainer = TorchTrainer(",
            "    ray_worker,",
            f"    train_loop_config={settings!r},",
            "    torch_config=TorchConfig(backend='gloo'),  # carries the port where ranks meet",
            "    scaling_config=ScalingConfig(",
            f"        num_workers={most if least == most else (least, most)},",
            f"        use_gpu={bool(held.gpus)},",
            f"        resources_per_worker={share!r},",
            "    ),",
            "    run_config=RunConfig(",
            f"        name={request.name!r},",
            f"        storage_path={str(request.folder / 'ray')!r},",
            f"        failure_config=FailureConfig(max_failures={request.restarts}),",
            "    ),",
            ")",
            "try:",
            "    trainer.fit()",
            "    failed = False",
            "except Exception as error:  # its ranks left word of why",
            "    print(error)",
            "    failed = True",
            f"raise SystemExit(ray_exit_code({str(request.folder)!r}, failed=failed))",
            "",
        ]
    )


def ray_worker(settings: Mapping[str, Any]) -> None:
    """One worker's share: its rank, started beside it and waited for."""
    rank, logs = dist.get_rank(), Path(settings["folder"]) / "ranks"
    if rank == 0:
        forget_failures(logs)
    store = meeting_place() if rank == 0 else None
    port = torch.tensor([store.port if store else 0])
    dist.broadcast(port, 0)
    failure = logs / f"rank-{rank}.error.json"
    environment = {
        **os.environ,
        "MASTER_PORT": str(int(port)),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": str(failure),
    }
    words = {kind: (logs / f"rank-{rank}.{kind}").open("ab") for kind in ("out", "err")}
    with words["out"] as out, words["err"] as err:
        process = subprocess.Popen(
            [sys.executable, *settings["words"]],
            cwd=settings["directory"],
            env=environment,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        code = wait(process, logs / STOP)
    if code and code != MISTAKE and not (logs / STOP).exists():  # a mistake is not tried again
        raise LostRank(f"rank {rank}", f"ended with {code}", f"Its log: {logs}/rank-{rank}.err")


def forget_failures(logs: Path) -> None:
    """Put away what an earlier start's ranks left word of, those too that this one is without."""
    for path in logs.glob("rank-*.error.json"):
        path.unlink(missing_ok=True)


def meeting_place() -> dist.TCPStore:
    """The store of this start's ranks, kept by the worker of the first, which outlives it."""
    return dist.TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)


def die_with_parent() -> None:
    """Have the kernel kill the rank with its worker: Ray starts the next in the same folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def wait(process: subprocess.Popen[bytes], stop: Path) -> int:
    """The rank's exit code; it is asked to save and end where the launcher was."""
    asked = False
    while process.poll() is None:
        if not asked and stop.exists():
            asked = True
            process.send_signal(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
    return process.returncode


def ray_exit_code(folder: str, *, failed: bool) -> int:
    """How the run ended, from the words its ranks left; a run that was stopped says 143."""
    logs = Path(folder) / "ranks"
    if (logs / STOP).exists():
        return STOPPED + signal.SIGTERM
    words = [json.loads(path.read_text()) for path in sorted(logs.glob("rank-*.error.json"))]
    reported = [word for word in words if "line" in word]
    causes = [word for word in reported if not word["follows"]] or reported
    if not causes:
        return FAILED if failed else 0
    first = min(causes, key=lambda word: word["moment"])
    print(first["line"], file=sys.stderr)  # noqa: T201
    return MISTAKE if first["mistake"] else FAILED
