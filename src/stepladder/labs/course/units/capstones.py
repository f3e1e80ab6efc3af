"""The capstones: what several units have taught, in one piece of work each."""

from __future__ import annotations

from stepladder.labs.course import figures
from stepladder.labs.course.unit import CoursePart, Exercise, Question, Trap, Unit

LARGE, CLUSTER = "llama3-70b", "64 x H100-80GB"
PLAN = "bf16 zero3 shard=64 batch=512 micro=2 recompute=blocks compile=on"

CAPSTONE_PLAN = Unit(
    "capstone-plan",
    "A 70B on 64 GPUs",
    "Plan it, defend the plan against four others, and simulate the run with its failures.",
    hours=5,
    exercises=(
        Exercise(
            "Hand in a plan, its memory by owner, a defence and a simulated run",
            "plan-70b",
            f'stepladder plan {LARGE} --sequence 8192 --on "{CLUSTER}" --plan "{PLAN}"',
            "planner.md",
        ),
    ),
    takeaways=(
        "State first, then logits and activations, then the micro-batch that fills the rest.",
        "A plan is defended by the numbers of those that lose.",
    ),
    checklist=(
        Question(
            "owner",
            f"'{PLAN}' for Llama 3 70B, sequences of 8,192, on {CLUSTER}: who owns most of the "
            "memory?",
            lambda: figures.told(LARGE, PLAN, CLUSTER, 8192).memory.largest_owner()[0],
            choices=("parameters", "gradients", "optimizer", "activations", "logits"),
            traps=(
                Trap(lambda: "optimizer", "It is divided by 64"),
                Trap(lambda: "activations", "They are recomputed: only blocks' inputs stay"),
            ),
            shown_by=f'stepladder plan {LARGE} --sequence 8192 --on "{CLUSTER}" --plan "{PLAN}"',
        ),
        Question(
            "logits",
            "And how many GiB are the logits of its two sequences as backward begins: log-softmax "
            "and two gradients, all in float32?",
            lambda: figures.told(LARGE, PLAN, CLUSTER, 8192).memory.logits / figures.GIB,
            unit="GiB",
            within=0.05,
            traps=(
                Trap(
                    lambda: figures.told(LARGE, PLAN.replace("micro=2", "micro=1"), CLUSTER, 8192)
                    .memory.logits / figures.GIB,
                    "That is for one sequence",
                ),
                Trap(
                    lambda: figures.told(LARGE, PLAN, CLUSTER, 8192).memory.logits / 6
                    / figures.GIB,
                    "That is the logits alone, in bf16",
                ),
            ),
        ),
        Question(
            "state",
            "How many GiB of state does each of the 64 keep, gradients counted?",
            lambda: figures.told(LARGE, PLAN, CLUSTER, 8192).memory.state_bytes / figures.GIB,
            unit="GiB",
            traps=(
                Trap(
                    lambda: 12 * figures.facts(LARGE).parameters / 64 / figures.GIB,
                    "The gradients are missing",
                ),
            ),
        ),
    ),
)  # fmt: skip

CAPSTONE_FAULTS = Unit(
    "capstone-faults",
    "Five faults in a training job",
    "Find and mend what is wrong with a job that runs, and whose loss falls.",
    hours=3,
    exercises=(
        Exercise("Find five faults", "five-faults", page="troubleshooting.md"),
    ),
    takeaways=(
        "A falling loss proves nothing: hold each promise of a job against a plain oracle.",
        "Compare under plain SGD: Adam and clipping hide a gradient of the wrong size.",
    ),
    checklist=(
        Question(
            "hidden",
            "Gradients are 2 times too large. Which of these steps shows it: sgd, adam, or sgd "
            "with every gradient clipped?",
            lambda: "sgd",
            choices=("sgd", "adam", "clipped"),
            traps=(
                Trap(lambda: "adam", "Adam divides a gradient by its own size"),
                Trap(lambda: "clipped", "A clipped gradient has the same norm whatever it was"),
            ),
        ),
    ),
)  # fmt: skip

CAPSTONES = CoursePart("Capstones", (CAPSTONE_PLAN, CAPSTONE_FAULTS))
