"""The fourth part: many nodes, their faults, and the choice of a strategy."""

from __future__ import annotations

from stepladder.labs.course import figures
from stepladder.labs.course.unit import CoursePart, Exercise, Question, Trap, Unit

WEAK = "bf16 zero3 micro=1 recompute=selective compile=on"
LARGE = ("llama3-70b", "bf16 zero3 shard=64 batch=512 micro=2 recompute=blocks compile=on")
CLUSTER = "64 x H100-80GB"
SMALL = "gpt:layers=32,hidden=2560,heads=20,vocab=50368,sequence=2048"

MANY_NODES = Unit(
    "many-nodes",
    "Many nodes",
    "Start a run on several nodes, measure its links, and say how it scales.",
    hours=7,
    exercises=(
        Exercise(
            "Bandwidth between nodes, and checkpoints that survive",
            "many-nodes",
            page="checkpoints.md",
        ),
        Exercise(
            "See what a launcher would send",
            command='stepladder launch gpt2 --on slurm --nodes 2 --dry-run --plan "bf16 zero3"',
            page="launchers.md",
        ),
        Exercise(
            "Strong and weak scaling, Amdahl's law, and the wall that a run stands at",
            "three-walls",
            "stepladder bench scaling --steps 2",
            "recipes.md",
        ),
        Exercise("Compress gradients for slow links", command="stepladder bench compression "
                 "--steps 2", page="rungs/compression.md", bonus=True),
    ),
    takeaways=(
        "Between nodes a byte costs ten times what it costs inside one: put the talk inside.",
        "Weak scaling keeps each device's work; strong scaling divides it. Say which.",
        "Efficiency from 8 devices on hides what the first node lost.",
    ),
    checklist=(
        Question(
            "weak",
            f"Llama 3 8B with '{WEAK}': what is the weak scaling efficiency from 8 to 1,024 "
            "H100-80GB, in percent, by the planner?",
            lambda: 100
            * figures.rate("llama3-8b", WEAK, "1024 x H100-80GB")
            / figures.rate("llama3-8b", WEAK, "8 x H100-80GB"),
            unit="%",
            within=0.03,
            traps=(
                Trap(
                    lambda: 100
                    * figures.rate("llama3-8b", WEAK, "8 x H100-80GB")
                    / figures.rate("llama3-8b", WEAK, "1024 x H100-80GB"),
                    "That is its inverse",
                ),
            ),
            shown_by=f'stepladder plan llama3-8b --on "1024 x H100-80GB" --plan "{WEAK}"',
        ),
        Question(
            "claim",
            "'A 7B model learns from 1T tokens in 17 hours on 8 A100s.' At 6 FLOPs per parameter "
            "and token, how many days does it take at their bf16 peak?",
            lambda: 6 * 7e9 * 1e12 / (8 * figures.peak_flops("A100-80GB")) / figures.DAY,
            unit="days",
            traps=(Trap(lambda: 17 / 24, "That is the claim"),),
        ),
    ),
)  # fmt: skip

FAULTS = Unit(
    "faults",
    "Faults: checkpoints, restarts, elastic runs",
    "Lose a node and as little work as possible.",
    hours=6,
    exercises=(
        Exercise(
            "Elastic training through a node's failure",
            "elastic",
            'stepladder verify resume --plan "fp32"',
            "survival.md",
        ),
        Exercise("Resume in the middle of an epoch, on fewer ranks", "data-order", page="data.md"),
        Exercise(
            "Look into what a run saved: stepladder checkpoint verify RUN",
            page="checkpoints.md",
        ),
        Exercise("When a loss is NaN, a rank hangs or a disk fills", page="troubleshooting.md"),
    ),
    takeaways=(
        "A checkpoint is whatever the next step depends on, and the place in the data.",
        "Nobody inside notices that a rank is gone: something outside must.",
        "Save every sqrt(2 x cost of a save x time between failures).",
    ),
    checklist=(
        Question(
            "interval",
            "A save stalls training for 30 s. Each of 1,000 devices fails once in five years. How "
            "many minutes should lie between saves, by Young's rule?",
            lambda: figures.save_interval(30, 5 * 365 * figures.DAY / 1000) / 60,
            unit="minutes",
            traps=(
                Trap(
                    lambda: figures.save_interval(30, 5 * 365 * figures.DAY) / 60,
                    "That is for one device: a thousand fail a thousand times as often",
                ),
            ),
        ),
        Question(
            "efficiency",
            "A run of 120 steps saves after every tenth and loses a node right after step 47. "
            "Which percentage of the steps that it takes are useful?",
            lambda: 100 * figures.useful_share(steps=120, every=10, lost_at=47),
            unit="%",
            within=0.002,
            traps=(
                Trap(lambda: 100 * (120 - 47) / 120, "What was saved is not lost"),
                Trap(lambda: 100 * (120 - 7) / 120, "Seven steps are made twice: 127 are taken"),
            ),
        ),
        Question(
            "refit",
            "'bf16 zero3 shard=32 batch=768 micro=4' loses a node of 8 and goes on with 24 ranks. "
            "How many micro-batches does each rank make now?",
            lambda: figures.refitted_micro_batches("bf16 zero3 shard=32 batch=768 micro=4", 24),
            within=0,
            traps=(
                Trap(
                    lambda: figures.micro_batches("bf16 zero3 shard=32 batch=768 micro=4", 32),
                    "That was so before: the batch stays, the ranks are fewer",
                ),
            ),
        ),
    ),
)

STRATEGY = Unit(
    "strategy",
    "Choosing a strategy",
    "Given a model and a cluster, choose a plan, forecast it, and defend it.",
    hours=4,
    exercises=(
        Exercise(
            "Plan a model and see why every other plan loses",
            command='stepladder plan llama3-8b --sequence 8192 --on "8 x A100-80GB" --batch 64',
            page="planner.md",
        ),
        Exercise(
            "Meet the walls of memory, compute and communication, and pass them",
            command="stepladder bench walls --steps 2",
            page="walls.md",
        ),
        Exercise("The classic questions", page="interview.md"),
        Exercise("From 1 to 1,000 GPUs", page="recipes.md"),
        Exercise(
            "Calibrate the planner for this machine",
            command="stepladder calibrate --seconds 20 --out calibration.json",
            page="planner.md",
            bonus=True,
        ),
    ),
    takeaways=(
        "Compute the whole state before choosing: 16 bytes a parameter, not 2.",
        "Sharding can be faster than DDP where DDP fits: its memory holds a larger micro-batch.",
        "A plan without a forecast of its memory is a guess.",
    ),
    checklist=(
        Question(
            "ratio",
            f"'{SMALL}' on 8 x A100-80GB: how many times the tokens a second of 'bf16 ddp micro=1' "
            "does 'bf16 zero3 micro=8' have, by the planner?",
            lambda: (
                figures.rate(SMALL, "bf16 zero3 micro=8", "8 x A100-80GB")
                / figures.rate(SMALL, "bf16 ddp micro=1", "8 x A100-80GB")
            ),
            within=0.03,
            traps=(
                Trap(
                    lambda: (
                        figures.rate(SMALL, "bf16 zero3 micro=1", "8 x A100-80GB")
                        / figures.rate(SMALL, "bf16 ddp micro=1", "8 x A100-80GB")
                    ),
                    "That is with the same micro-batch",
                ),
            ),
            shown_by=f'stepladder plan {SMALL} --on "8 x A100-80GB" --plan "bf16 ddp micro=1"',
        ),
        Question(
            "days",
            f"Llama 3 70B, sequences of 8,192, '{LARGE[1]}' on {CLUSTER}: how many days for 1T "
            "tokens, by the planner?",
            lambda: figures.days(LARGE[0], LARGE[1], CLUSTER, 8192, tokens=1e12),
            unit="days",
            within=0.03,
            shown_by=f"stepladder plan {LARGE[0]} --sequence 8192 --on "
            f'"{CLUSTER}" --plan "{LARGE[1]}" --tokens 1e12',
        ),
        Question(
            "dollars",
            "And how many thousand dollars, at the table's rent?",
            lambda: figures.dollars(LARGE[0], LARGE[1], CLUSTER, 8192, tokens=1e12) / 1e3,
            unit="thousand",
            within=0.03,
        ),
    ),
)

MANY_NODES_AND_FAULTS = CoursePart("Many nodes and faults", (MANY_NODES, FAULTS, STRATEGY))
