"""One run in every place: `python -m tests.services.everywhere` writes launchers.json.

The same RUN.toml on two ranks: here, undisturbed; as a Slurm job that has to make room for another;
on Ray, one of whose workers is killed; on two hosts by ssh. Each must end with the same loss to the
last bit. A place that this machine has not is said, with the command that would bring it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.chaos.victim import Victim

from . import ray_cluster, slurm_cluster, two_hosts
from .same import STEPS, Launched, Place

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "launchers.json"


def on_slurm(place: Place, folder: Path) -> Launched:
    with slurm_cluster.SlurmCluster(folder) as cluster:
        os.environ.update(cluster.environment)
        return slurm_cluster.make_room(place, cluster, "slurm")


def on_ray(place: Place, folder: Path) -> Launched:
    return ray_cluster.lose_worker(place, "ray")


def on_hosts(place: Place, folder: Path) -> Launched:
    place.pause(0)
    with two_hosts.TwoHosts(folder) as hosts:
        job = place.launch("ssh", "ssh", *hosts.words, before=hosts.before)
        job.wait()
        return job


Start = Callable[[Place, Path], Launched]
PLACES: dict[str, tuple[str, Callable[[], str], Start]] = {
    "slurm": ("2 nodes; made room for another job, and requeued", slurm_cluster.missing, on_slurm),
    "ray": ("2 workers; one killed", ray_cluster.missing, on_ray),
    "ssh": ("2 hosts, a rank on each", two_hosts.missing, on_hosts),
}


def row(name: str, what: str, run: Victim, reference: Victim) -> dict:
    """What came of a run, beside the one that nobody touched."""
    losses = run.losses()
    (last,) = losses[STEPS - 1]
    taken = len(run.entries("step"))
    same = run.weights(STEPS) == reference.weights(STEPS) and losses == reference.losses()
    return {
        "place": name,
        "what": what,
        "starts": run.lives(),
        "steps taken again": taken - len(losses),
        "last loss": last.hex(),
        "same bits": same,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everywhere-") as space:
        place = Place(Path(space) / "run")
        reference = place.reference()
        rows = [row("local", "2 ranks, undisturbed", reference, reference)]
        for name, (what, missing, start) in PLACES.items():
            if why := missing():
                print(f"{name}: {why}", flush=True)
                continue
            folder = Path(space) / name
            folder.mkdir()
            rows.append(row(name, what, start(place, folder).run, reference))
            print(rows[-1], flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores, {platform.system()}",
        "steps": STEPS,
        "good": all(entry["same bits"] for entry in rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
