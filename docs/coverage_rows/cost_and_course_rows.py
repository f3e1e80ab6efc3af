"""What a run costs, which strategy to choose, and the course itself."""

from __future__ import annotations

from .row import Part, Row

LARGE = "stepladder plan llama3-70b --sequence 8192"
PLAN = "bf16 zero3 shard=64 batch=512 micro=2 recompute=blocks compile=on"

SCALE = Part(
    "Batch size and learning rate",
    (
        Row(
            "learning-rate",
            "A larger batch: linear scaling, square root, warm-up",
            "experiments.md#the-learning-rate-of-a-larger-batch",
            "stepladder bench learning-rate --seeds 1 --steps 8",
            r"^optimizer batch",
            lines=8,
        ),
        Row(
            "end-to-end",
            "A classifier from CPU to mixed precision, where a small model gains nothing",
            "tutorial.md",
            "stepladder lab run digits",
            r"on .*seconds",
            lab="digits",
            lines=4,
        ),
    ),
)

STRATEGY = Part(
    "Strategy, cost, energy",
    (
        Row(
            "strategy",
            "Which plan for this model on these devices, and why the others lose",
            "planner.md",
            'stepladder plan llama3-8b --sequence 8192 --on "8 x A100-80GB" --batch 64',
            r"plans for a batch of",
            lab="plan-70b",
        ),
        Row(
            "cost",
            "Days, dollars, energy and CO2 of a trillion tokens",
            "interview.md#what-does-it-cost-and-what-does-better-utilisation-save",
            f'{LARGE} --on "64 x H100-80GB" --plan "{PLAN}" --tokens 1e12',
            r"CO2",
            lab="plan-70b",
        ),
        Row(
            "published",
            "Forecasts beside published runs",
            "planner.md#how-accurate-the-forecasts-are",
            "python benchmarks/planner/published_runs.py",
            r"^\| all",
        ),
    ),
)

COURSE = Part(
    "Course, labs and capstones",
    (
        Row(
            "course",
            "The course in units, and how far you are",
            "course.md",
            "stepladder course",
            r"capstone-failure",
        ),
        Row(
            "capstone-plan",
            "Capstone: a 70B on 64 GPUs, planned and simulated with failures",
            "course.md#a-70b-on-64-gpus-capstone-plan",
            "stepladder lab run plan-70b",
            r"one a day",
            lab="plan-70b",
        ),
        Row(
            "capstone-faults",
            "Capstone: five faults in a job that runs",
            "course.md#five-faults-in-a-training-job-capstone-faults",
            "stepladder lab run five-faults",
            r"epoch",
            lab="five-faults",
            lines=3,
        ),
        Row(
            "capstone-failure",
            "Capstone: a small GPT keeps 90 % of its work though a node is killed",
            "course.md#a-small-gpt-through-a-nodes-failure-capstone-failure",
            "stepladder lab check node-failure",
            r"useful steps of",
            lab="node-failure",
            lines=2,
            exit_code=1,  # the starter fails
            before="stepladder lab start node-failure",
        ),
    ),
)

COST_AND_COURSE = (SCALE, STRATEGY, COURSE)
