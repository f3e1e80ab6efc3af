"""Start ranks yourself: a script for torchrun.

torchrun starts one process a device, each with the same script, and tells each who it is by the
environment:

    RANK          which of all processes this is, 0 to WORLD_SIZE - 1
    WORLD_SIZE    how many there are, on all nodes together
    LOCAL_RANK    which of the processes of this node it is: it chooses the device. On the second
                  node of eight devices, rank 9 has local rank 1
    MASTER_ADDR, MASTER_PORT    where they meet; init_process_group reads them itself

A script reads these, joins the process group, works on its share of the data, and leaves the group
at its end. This file is such a script. Without torchrun it starts itself with it, by the command
that you would type; the module behind the command is torch.distributed.run.

Claim: two processes that torchrun started fit a line on half of the rows each, average their
gradients at every step, and end with the weight that one process finds on all rows, to 6 digits.

Predict: 12 rows are shared by 2 ranks; each rank adds up its own rows' numbers, which are 0 to 11,
dealt out in turn. What is the sum on rank 1? [sum of rows; rank = 1]

Often wrong:
- the local rank is taken for the rank
- all ranks work on the same rows
- torchrun is told of one process
- gradients are not averaged over the ranks
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

ROWS, STEPS, LR = 12, 20, 0.01
STARTED_BY = os.environ.get("TORCHELASTIC_RUN_ID", "")  # torchrun sets it


@dataclass(frozen=True)
class Place:
    """Who this process is."""

    rank: int
    num_ranks: int
    local_rank: int


def read_place() -> Place:
    """What torchrun says of this process."""
    # >>> This process's place, from the environment.
    # ??? os.environ is a dictionary of texts: which three of its keys does torchrun set?
    # ??? Numbers come as text.
    env = os.environ
    return Place(int(env["RANK"]), int(env["WORLD_SIZE"]), int(env["LOCAL_RANK"]))
    # <<< return Place(0, 1, 0)


def rows_of(rank: int, num_ranks: int) -> Tensor:
    """The rows that one rank works on."""
    # >>> This rank's rows of 0 to ROWS - 1: dealt out in turn, so that each row has one owner.
    # ??? torch.arange makes all of them. A slice has a start and a step.
    # ??? Of 2 ranks, rank 1 has rows 1, 3, 5 and so on.
    return torch.arange(ROWS)[rank::num_ranks]
    # <<< return torch.arange(ROWS)


def fit(rows: Tensor) -> float:
    """The slope of a line through this rank's rows, by gradient descent with the other ranks."""
    x = rows / ROWS
    y, weight = 3 * x + x.square(), torch.zeros(())
    for _ in range(STEPS):
        gradient = (2 * (weight * x - y) * x).mean()
        # >>> The mean of all ranks' gradients, in place of this rank's own.
        # ??? dist.all_reduce adds a tensor up over the ranks, in place.
        # ??? A mean is a sum over how many? dist knows the number of ranks.
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        # <<< pass
        weight -= LR * ROWS * gradient
    return weight.item()


def main(folder: Path) -> None:
    """What every process that torchrun starts does."""
    place = read_place()
    # >>> Join the other processes, over gloo.
    # ??? init_process_group takes the backend's name. The rest it finds in the environment.
    # ??? What is joined has to be left: look at the last line.
    dist.init_process_group("gloo")
    # <<< pass
    rows = rows_of(place.rank, place.num_ranks)
    found = {"rank": place.rank, "local_rank": place.local_rank, "rows": rows.tolist()}
    found |= {"ranks": dist.get_world_size(), "weight": fit(rows), "started": STARTED_BY}
    (folder / f"{place.rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def command(script: Path, num_ranks: int, *words: str) -> list[str]:
    """What starts a script on several ranks of this machine; the words are the script's own."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    # >>> torchrun, how many processes it starts on this node, the script, and the script's words.
    # ??? 'torchrun --help' lists its options. Which says how many processes a node has?
    # ??? An option and its value are two words of the list, or one with = between them.
    return [*torchrun, f"--nproc-per-node={num_ranks}", str(script), *words]
    # <<< return [*torchrun, str(script), *words]


def launch(num_ranks: int) -> list[dict[str, Any]]:
    """What the ranks wrote; the script is the file in which `main` stands."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(Path(inspect.getfile(main)), num_ranks, folder)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        if ended.returncode:
            reasons = re.findall(r"^(?:\[rank\d+\]: )?\w+Error: .*", ended.stderr, re.MULTILINE)
            raise RuntimeError(f"a rank ended: {[*reasons, ended.stderr[-500:]][0]}")
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


def measure() -> list[dict[str, Any]]:
    return [{**row, "sum of rows": sum(row["rows"])} for row in launch(2)]


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(Path(sys.argv[1]))
    else:
        for row in measure():
            print(row)
