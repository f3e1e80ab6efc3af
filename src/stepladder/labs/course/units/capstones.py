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

STATE_BYTES, STORAGE_BYTES, BETWEEN = 12e9, 3e9, 5000  # 1B parameters; in a step; steps
SAVE_STEPS = STATE_BYTES / STORAGE_BYTES

CAPSTONE_FAILURE = Unit(
    "capstone-failure",
    "A small GPT through a node's failure",
    "Train on four ranks, lose a node at a step that you do not know, and keep 90 % of the work.",
    hours=4,
    exercises=(
        Exercise(
            "Write the saves and the restart of a training script whose node is killed",
            "node-failure",
            page="survival.md",
        ),
        Exercise(
            "Start a run of two ranks, kill one of them (kill -9) and see it go on",
            command='stepladder train --ranks 2 --plan "fp32 ddp" --train.steps 60 '
            "--train.save_every 10 --run.folder runs/killed",
            page="checkpoints.md",
        ),
    ),
    takeaways=(
        "State is whatever the next step reads and this one changed: generators and order too.",
        "Save every sqrt(2 x cost of a save x time between failures), then look at the worst case.",
        "Count efficiency in work, so that it can be compared between machines.",
    ),
    checklist=(
        Question(
            "interval",
            "A model of 1B parameters saves weights and two moments in float32. The storage takes "
            "3 GB in the time of one step, and a node fails every 5,000 steps. How many steps "
            "should lie between saves, by Young's rule?",
            lambda: figures.save_interval(SAVE_STEPS, BETWEEN),
            unit="steps",
            traps=(
                Trap(
                    lambda: figures.save_interval(SAVE_STEPS / 2, BETWEEN),
                    "A failure destroys half an interval on average, not all of it",
                ),
                Trap(
                    lambda: figures.save_interval(SAVE_STEPS * 16 / 12, BETWEEN),
                    "Gradients are not saved: they are made again in each step",
                ),
                Trap(
                    lambda: figures.save_interval(SAVE_STEPS / 3, BETWEEN),
                    "That is the weights alone: the optimizer has two moments for each",
                ),
            ),
        ),
        Question(
            "waste",
            "Which percentage of the time do saves and failures then cost together?",
            lambda: 100 * figures.least_waste(SAVE_STEPS, BETWEEN),
            unit="%",
            traps=(
                Trap(
                    lambda: 50 * figures.least_waste(SAVE_STEPS, BETWEEN),
                    "That is one of the two: at the best interval both cost the same",
                ),
            ),
        ),
        Question(
            "oftener",
            "Nodes fail four times as often. By which factor does the best interval change?",
            lambda: figures.save_interval(1.0, 0.25) / figures.save_interval(1.0, 1.0),
            traps=(
                Trap(lambda: 0.25, "It goes with the square root of the time between failures"),
                Trap(lambda: 2.0, "What fails more often is saved more often"),
            ),
        ),
        Question(
            "efficiency",
            "A run of 600 steps saves after every 25th, which takes as long as half a step, and "
            "loses a node right after step 424. What is its efficiency, in percent: useful steps "
            "over steps taken and saves counted in steps?",
            lambda: 100
            * figures.useful_share(steps=600, every=25, lost_at=424, save_steps=0.5),
            unit="%",
            within=0.002,
            traps=(
                Trap(
                    lambda: 100 * figures.useful_share(steps=600, every=25, lost_at=424),
                    "The saves are missing",
                ),
                Trap(lambda: 100 * 600 / (600 + 424 + 12), "What was saved is not made again"),
            ),
        ),
    ),
)  # fmt: skip

CAPSTONES = CoursePart("Capstones", (CAPSTONE_PLAN, CAPSTONE_FAULTS, CAPSTONE_FAILURE))
