"""Checks of the plan for a 70B: the planner's verdict, its owners, its rivals, and failures."""

from __future__ import annotations

from types import ModuleType

import stepladder as sl
from stepladder.errors import PlanError
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written
from stepladder.record import Forecast

TASK = {"MODEL": "llama3-70b", "SEQUENCE": 8192, "CLUSTER": "64 x H100-80GB", "BATCH": 512}
SLOWER = 1.05  # than the best, and not more
MISTAKES = (
    Mistake(
        "DDP, because 70 GB of weights nearly fit",
        'PLAN = "bf16 zero3 shard=64 micro=2 batch=512 recompute=blocks compile=on"',
        'PLAN = "bf16 ddp micro=1 batch=512"',
        "your plan does not fit: memory: needs",
    ),
    Mistake(
        "the batch is meant for each GPU",
        'PLAN = "bf16 zero3 shard=64 micro=2 batch=512 recompute=blocks compile=on"',
        'PLAN = "bf16 zero3 shard=64 micro=2 batch=32768 recompute=blocks compile=on"',
        "32,768 sequences, not 512: batch= counts those of all GPUs",
    ),
    Mistake(
        "one sequence at a time, though two fit",
        'PLAN = "bf16 zero3 shard=64 micro=2 batch=512 recompute=blocks compile=on"',
        'PLAN = "bf16 zero3 shard=64 micro=1 batch=512 recompute=blocks compile=on"',
        "slower than the best that the search finds",
    ),
    Mistake(
        "a plan that does not fit is taken for its speed",
        'PLAN = "bf16 zero3 shard=64 micro=2 batch=512 recompute=blocks compile=on"',
        'PLAN = "bf16 zero3 shard=64 micro=4 batch=512 recompute=blocks compile=on"',
        "so its speed does not count yet",
    ),
    Mistake(
        "another cluster is planned for",
        '= "llama3-70b", 8192, "64 x H100-80GB", 512',
        '= "llama3-70b", 8192, "64 x H200", 512',
        "CLUSTER is '64 x H200': the task says '64 x H100-80GB'",
    ),
    Mistake(
        "gradients are forgotten in the state",
        'return {"parameters": each, "gradients": each, "optimizer": 2 * each}',
        'return {"parameters": each, "optimizer": 2 * each}',
        "there is no 'gradients' among the owners",
    ),
    Mistake(
        "a plan that does not fit is called slow",
        'plan: "time" if sl.forecast(FACTS, plan, CLUSTER).fits else "memory" for plan in RIVALS',
        'plan: "time" for plan in RIVALS',
        "loses by memory, not by time",
    ),
    Mistake(
        "what was not saved yet is not made again",
        "return (steps + again) * step_seconds",
        "return steps * step_seconds",
        "what was made since the last save is lost",
    ),
)


def forecast_of(lesson: ModuleType) -> Forecast:
    plan = written(lesson.PLAN, "PLAN")
    try:
        return sl.forecast(lesson.FACTS, plan, lesson.CLUSTER)
    except PlanError as refused:
        expect(False, f"your plan is refused: {refused}")
        raise


def check_the_plan_fits(lesson: ModuleType) -> None:
    """Your plan is legal, keeps the batch of 512, and fits the memory of every GPU."""
    found = forecast_of(lesson)
    sequences = found.tokens_per_step // lesson.SEQUENCE
    expect(
        sequences == lesson.BATCH,
        f"your plan trains on {sequences:,} sequences, not {lesson.BATCH}: batch= counts those of "
        "all GPUs together.",
    )
    expect(found.fits, f"your plan does not fit: {' '.join(found.reasons)}")
    expect(not found.reasons, f"your plan is refused: {' '.join(found.reasons)}")


def check_the_plan_is_fast(lesson: ModuleType) -> None:
    """Its step takes at most 5 % longer than that of the best plan that the search finds."""
    found = forecast_of(lesson)
    expect(found.fits, "your plan does not fit, so its speed does not count yet.")
    assert found.time is not None
    best = sl.search(lesson.FACTS, lesson.CLUSTER, batch=lesson.BATCH).best
    seconds = found.time.step_seconds
    times = seconds / best.seconds
    free = memory_limit(found) - found.memory.peak_bytes / 2**30
    expect(
        times <= SLOWER,
        f"a step takes {seconds:.1f} s, {times - 1:.0%} slower than the best that the search "
        f"finds. {free:.0f} GiB are free: what would make the step faster and still fit?",
    )


def check_the_owners(lesson: ModuleType) -> None:
    """The state of each GPU is what the planner says, owner by owner, for 8 and 64 GPUs."""
    for count in (8, 64):
        plan = f"bf16 zero3 shard={count} micro=1 batch={count} recompute=blocks"
        memory = sl.forecast(lesson.FACTS, plan, f"{count} x H100-80GB").memory
        mine = written(lesson.state_gib(lesson.FACTS.parameters, count), "state_gib")
        for owner in ("parameters", "gradients", "optimizer"):
            expect(owner in mine, f"there is no '{owner}' among the owners of the state.")
            wanted = memory.by_owner()[owner] / 2**30
            expect_close(mine[owner], wanted, f"GiB of {owner} on each of {count}", rtol=0.02)


def check_the_defence(lesson: ModuleType) -> None:
    """Each rival loses for the reason that you give."""
    mine = written(lesson.defend(), "defend")
    for plan in lesson.RIVALS:
        found = sl.forecast(lesson.FACTS, plan, lesson.CLUSTER)
        reason = "time" if found.fits else "memory"
        given = mine.get(plan)
        expect(given, f"'{plan}' has no reason yet.")
        expect(
            given == reason,
            f"'{plan}' loses by {reason}, not by {given}: it needs "
            f"{found.memory.peak_bytes / 2**30:.0f} GiB of {memory_limit(found):.0f}.",
        )


def memory_limit(found: Forecast) -> float:
    assert found.memory_limit_bytes is not None
    return found.memory_limit_bytes / 2**30


def check_the_run_with_failures(lesson: ModuleType) -> None:
    """A simulated run takes as long as one that is walked through step by step."""
    for steps, every, fail_at in ((120, 10, [47]), (100, 25, []), (300, 50, [49, 50, 51, 299])):
        mine = written(lesson.simulate(steps, 2.0, every, 60.0, fail_at), "simulate")
        wanted = walked(steps, 2.0, every, 60.0, fail_at)
        at = f"{steps} steps, saved after every {every}, failing after {fail_at}"
        least = steps * 2.0 + 60.0 * len(fail_at)
        expect(
            not (fail_at and mine <= least < wanted),
            f"{at}: {mine:g} s, not {wanted:g}: what was made since the last save is lost, and "
            "made again.",
        )
        expect_close(mine, wanted, f"seconds of {at}")


def walked(steps: int, seconds: float, every: int, restart: float, fail_at: list[int]) -> float:
    """The same, step by step."""
    done, clock, left = 0, 0.0, list(fail_at)
    while done < steps:
        done, clock = done + 1, clock + seconds
        if left and done == left[0]:
            left.pop(0)
            done, clock = done - done % every, clock + restart
    return clock


def check_the_task_is_the_one_given(lesson: ModuleType) -> None:
    """The file plans what the task says: this model, sequence, cluster and batch."""
    for name, given in TASK.items():
        mine = getattr(lesson, name)
        expect(mine == given, f"{name} is {mine!r}: the task says {given!r}.")
