"""Checks of training through a failure: the data, the checkpoint, who goes on, torch's agent."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from stepladder.errors import LostRank
from stepladder.labs.equipment.lab_ranks import on_ranks, starts
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

MISTAKES = (
    Mistake(
        "rows are drawn from the rank",
        "torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::num_ranks]",
        "torch.randn(BATCH // num_ranks, 8, generator=torch.Generator().manual_seed(rank))",
        "learns from other rows on 2 ranks than on 3",
    ),
    Mistake(
        "the optimizer's memory is not saved",
        '        optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "is the optimizer's momentum saved and taken back?",
    ),
    Mistake(
        "training begins anew instead of at the checkpoint",
        'first, rows = state["step"], state["rows"]',
        "pass",
        "made twice: go on from the checkpoint's step",
    ),
    Mistake(
        "the lost rank is waited for",
        "            num_ranks -= 1\n",
        "            continue\n",
        "though one was lost: go on with those that are left",
    ),
)


def check_a_step_has_its_rows(lesson: ModuleType) -> None:
    """What a step learns from depends on the step, not on how many ranks there are."""
    for step in (0, 5):
        sets = []
        for ranks in (1, 2, 3):
            x = torch.cat([lesson.rows_of(step, rank, ranks)[0] for rank in range(ranks)])
            expect(len(x) == 12, f"{ranks} ranks read {len(x)} rows of step {step}, not 12.")
            sets.append(x[x[:, 0].argsort()])
        same = torch.equal(sets[0], sets[1]) and torch.equal(sets[1], sets[2])
        expect(
            same,
            f"step {step} learns from other rows on 2 ranks than on 3: draw the batch from the "
            "step alone, then share it.",
        )
    expect(
        not torch.equal(lesson.rows_of(0, 0, 2)[0], lesson.rows_of(5, 0, 2)[0]),
        "steps 0 and 5 learn from the same rows: draw the batch from the step.",
    )


def check_the_run_survives(lesson: ModuleType) -> None:
    """A rank is lost at step 7, two go on, and the losses are those of a run without failure."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "quiet").touch()
        wanted = on_ranks(lesson.train, 3, Path(name), join=False)[0]
    with tempfile.TemporaryDirectory() as name, starts() as started:
        try:
            found = written(lesson.supervise(Path(name), 3), "supervise")
        except LostRank as lost:
            expect(False, f"a rank was lost and nobody went on: {lost}")
    expect(
        started == [3, 2],
        f"ranks were started in numbers {started} though one was lost: go on with those that are "
        "left.",
    )
    steps = [row["step"] for row in found]
    again = [row["step"] for row in found if row["ranks"] == 2 and row["step"] < 6]
    expect(
        not again,
        f"steps {again} were made twice: go on from the checkpoint's step, 6, and its rows.",
    )
    expect(steps == list(range(12)), f"the rows tell of steps {steps}, not of 0 to 11.")
    for mine, right in zip(found, wanted, strict=True):
        expect(
            abs(mine["loss"] - right["loss"]) <= 1e-5 * right["loss"],
            f"from step {mine['step']} on the losses are not those of a run without failure "
            f"({mine['loss']:.6f}, not {right['loss']:.6f}): is the optimizer's momentum saved and "
            "taken back?",
        )


def check_torch_survives_too(lesson: ModuleType) -> None:
    """elastic_launch sees the same training through the same failure, by starting it again."""

    def launched(folder: Path) -> list[dict[str, float]]:
        place = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return lesson.train(*place, "env://", folder)

    def agent(rank: int, num_ranks: int, meeting: str) -> list[dict[str, float]]:
        logging.disable(logging.CRITICAL)  # it says at length that a rank was lost
        # The restarted ranks must not meet at the store of those before them.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        how = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=3, run_id="lab", rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0", rdzv_configs={"is_host": True}, max_restarts=1,
            monitor_interval=0.05, start_method="fork",
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            found = elastic_launch(how, launched)(Path(name))
            assert (Path(name) / "quiet").exists()
        return found[0]

    theirs = on_ranks(agent, 1, join=False)[0]
    with tempfile.TemporaryDirectory() as name:
        mine = lesson.supervise(Path(name), 3)
    wanted = [row["loss"] for row in theirs]
    expect_close([row["loss"] for row in mine], wanted, "losses beside those under elastic_launch")
