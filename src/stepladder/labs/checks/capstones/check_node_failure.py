"""Checks of the run through a node's failure: it ends, exactly as undisturbed, at 90 % efficiency.

It is really started, on two nodes of two ranks under torch's elastic_launch, and both ranks of a
node are really killed: after the step before a save, where most is lost. What counts is noted from
outside: each update and what it began from, and every file. Seconds are shown and not graded.
"""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

from stepladder.errors import WorldError
from stepladder.labs.equipment.two_nodes import RANKS, NodeRun, run_on_two_nodes
from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written

STEPS, STORAGE, ENOUGH = 80, 2_500_000, 0.90
RIGHT = "EVERY = round(save_interval(0.2, STEPS))"
CAUSES = {
    "parameters": "its parameters: are the model's saved and taken back?",
    "optimizer": "the optimizer's state: are its moments saved and taken back?",
    "data": "the rows it reads: is the order of the data saved and taken back?",
    "dropout": "the generator of its dropout: each rank has its own to save and to take back",
}
MISTAKES = (
    Mistake(
        "a failure is taken to destroy a whole interval",
        "(2 * save_steps * between_failures) ** 0.5",
        "(save_steps * between_failures) ** 0.5",
        "half an interval",
    ),
    Mistake(
        "nothing is saved, so everything is made again",
        RIGHT,
        "EVERY = 2 * STEPS",
        "nothing was saved",
    ),
    Mistake("saves are too rare", RIGHT, "EVERY = 20", "steps made twice cost most: save more"),
    Mistake("every step is saved", RIGHT, "EVERY = 1", "saves cost most: save less often"),
    Mistake(
        "the optimizer's moments are not taken back",
        '    optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "are its moments saved",
    ),
    Mistake(
        "the data begins anew",
        '    text.order.set_state(state["order"])\n',
        "",
        "is the order of the data saved",
    ),
    Mistake(
        "every rank continues rank 0's dropout",
        'state["dropout"][dist.get_rank()]',
        'state["dropout"][0]',
        "each rank has its own",
    ),
    Mistake(
        "the saved step is made a second time",
        'first = state["step"] + 1',
        'first = state["step"]',
        "step 35 begins from the parameters of step 36",
    ),
)

RUNS: dict[str, tuple[NodeRun, NodeRun, int]] = {}  # by file: three checks look at the same two


def check_the_interval(lesson: ModuleType) -> None:
    """save_interval wastes least: no interval near it costs less in saves and repeated steps."""
    for save_steps, between in ((0.25, 200.0), (3.0, 1000.0), (40.0, 20_000.0)):
        found = written(lesson.save_interval(save_steps, between), "save_interval")
        tried = [1.002**number for number in range(6000)]
        best = min(tried, key=lambda every: save_steps / every + every / 2 / between)
        at = f"a save of {save_steps:g} steps, a failure in {between:g}"
        expect(
            abs(found / best - 0.5**0.5) > 0.01,
            f"{at}: {found:.4g}, expected {best:.4g}. A failure destroys half an interval on "
            "average, not all of it.",
        )
        expect_close(found, best, f"{at}: steps between saves", rtol=0.01)


def check_the_run_goes_on(lesson: ModuleType) -> None:
    """Both ranks of a node are killed, elastic_launch starts all four, the last step is made."""
    for name, given in (("STEPS", STEPS), ("STORAGE", STORAGE)):
        mine = getattr(lesson, name)
        expect(mine == given, f"{name} is {mine}: the task says {given}.")
    undisturbed, disturbed, lost_after = runs(lesson)
    made = undisturbed.updates[0]
    expect(made == STEPS, f"undisturbed, train makes {made} updates, not {STEPS}.")
    for rank, notes in enumerate(undisturbed.starts[0]):
        for step, (mine, first) in enumerate(zip(notes, undisturbed.starts[0][0], strict=True)):
            expect(
                mine.parameters == first.parameters,
                f"rank {rank} has other parameters than rank 0 before step {step}: are gradients "
                "averaged over the ranks?",
            )
        expect(
            all(one.parameters != other.parameters for one, other in pairwise(notes)),
            "there are updates that change no parameter.",
        )
    raise_error(disturbed)
    again = disturbed.updates[-1]
    expect(
        STEPS - again <= lost_after,
        f"{lost_after} steps were made before the node was lost, {again} after it: "
        f"{STEPS - again - lost_after} were never made.",
    )


def check_it_ends_as_if_nothing_had_happened(lesson: ModuleType) -> None:
    """The first step after the restart begins from what it began from undisturbed; so does all."""
    undisturbed, disturbed, _ = runs(lesson)
    raise_error(disturbed)
    wanted, found = undisturbed.starts[0], disturbed.starts[-1]
    again = disturbed.updates[-1]
    expect(again <= STEPS, f"{again} steps were made after the restart, of {STEPS}.")
    first, begins = STEPS - again, found[0][0].parameters
    for step, note in enumerate(wanted[0]):
        expect(
            note.parameters != begins or step == first,
            f"after the restart step {first} begins from the parameters of step {step}: which is "
            "the first step that is not in what was saved?",
        )
    for at in range(again):
        step = first + at
        for cause, says in CAUSES.items():
            for rank in range(RANKS):
                same = getattr(found[rank][at], cause) == getattr(wanted[rank][step], cause)
                expect(
                    same,
                    f"after the restart step {step} is not the one of an undisturbed run. On rank "
                    f"{rank} what differs first is {says}",
                )
    expect(disturbed.final == undisturbed.final, "the parameters at the end are others.")


def check_nine_tenths_of_the_work_counts(lesson: ModuleType) -> str:
    """Useful steps over all that was done, saves counted in steps: at least 90 %."""
    undisturbed, disturbed, lost_after = runs(lesson)
    raise_error(disturbed)
    taken, saved = sum(disturbed.updates), disturbed.saved_bytes / STORAGE
    found = STEPS / (taken + saved)
    told = (
        f"{STEPS} useful steps of {taken} taken, lost after {lost_after}; "
        f"{disturbed.saved_bytes / 1e6:.1f} MB saved, as long as {saved:.1f} steps: {found:.1%}"
    )
    expect(disturbed.saved_bytes, f"{told}, not 90 %: nothing was saved before the node was lost.")
    why = "saves" if saved > taken - STEPS else "steps made twice"
    way = "save less often" if saved > taken - STEPS else "save more often"
    expect(found >= ENOUGH, f"{told}, not 90 %: {why} cost most: {way}.")
    share = undisturbed.seconds / disturbed.seconds
    return f"{told}. In seconds, which are not graded: {share:.0%} of an undisturbed run's pace."


def runs(lesson: ModuleType) -> tuple[NodeRun, NodeRun, int]:
    """A run without failure, one with, and after how many updates the node was lost."""
    key = str(lesson.__file__)
    if key not in RUNS:
        undisturbed = run_on_two_nodes(lesson.train)
        raise_error(undisturbed)
        later = [made for made in undisturbed.saved_after() if made > STEPS // 2]
        lost_after = later[0] - 1 if later else STEPS * 3 // 4  # just before a save
        RUNS[key] = undisturbed, run_on_two_nodes(lesson.train, lost_after), lost_after
    return RUNS[key]


def raise_error(run: NodeRun) -> None:
    error: WorldError | None = run.error
    if error is not None:
        raise error
