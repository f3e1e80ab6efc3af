"""A user's script that trains on a stream and may be killed: `stream_victim.py FOLDER KIND STEPS`.

Each rank writes the rows that it learned from, and the loss, as a line for each step.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import stepladder as sl
from tests.data.streams_of_tests import make
from tests.train.toys import net

PAUSE = 0.03  # a step's time, so that a signal meets the middle of a run


def main(folder, kind, steps):
    rank = os.environ.get("RANK", "0")
    torch.manual_seed(int(rank))
    run = sl.climb(net(), loss="cross_entropy", optimizer="adam lr=0.05", plan="fp32", device="cpu")
    run.resume(folder)
    with (
        open(Path(folder, f"learned-{rank}.jsonl"), "a") as log,
        run.batches(make(kind), size=4, seed=5, shuffle=10) as feed,
    ):
        while run.index < steps:
            batch, index = next(feed), run.index
            loss = run.step(batch).loss
            rows = batch.inputs[:, 0].long().tolist()
            print(json.dumps([index, loss, rows]), file=log, flush=True)
            if run.index % 3 == 0:
                run.save(folder, wait=False)
            time.sleep(PAUSE)
    run.finish_saving()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
