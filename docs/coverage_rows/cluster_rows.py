"""Many machines: collectives, launchers, faults."""

from __future__ import annotations

from .row import Part, Row

TRAIN = "--model.name gpt-tiny --train.sample 0 --train.batch 8"
FIRST = f"stepladder train --plan fp32 {TRAIN} --train.steps 4 --run.folder runs/one"

COLLECTIVES = Part(
    "Collectives",
    (
        Row(
            "collectives",
            "Latency and bandwidth of every collective",
            "communication.md#collectives",
            "stepladder bench collectives --largest 64",
            r"^collective over",
            lines=2,
        ),
        Row(
            "ring",
            "A ring all-reduce: its bytes counted, against the backend's",
            "communication.md#the-ring",
            "stepladder bench ring --largest 64",
            r"^bytes ring",
            lab="ring",
            lines=2,
        ),
    ),
)

NODES = Part(
    "Many nodes",
    (
        Row(
            "slurm",
            "A job on Slurm: the script that would be submitted",
            "launchers.md#slurm",
            'stepladder launch gpt2 --on slurm --nodes 2 --dry-run --plan "bf16 zero3"',
            r"#SBATCH --nodes",
            lines=2,
        ),
        Row(
            "kubernetes",
            "The same on Kubernetes: the manifests",
            "launchers.md#kubernetes",
            "stepladder launch gpt2 --on kubernetes --image example/stepladder:1 --nodes 2 "
            '--dry-run --plan "bf16 zero3"',
            r"^kind: Job",
        ),
        Row(
            "rendezvous",
            "Where the machines of a run meet, if two to four of them may take part",
            "survival.md#elastic",
            "stepladder launch gpt2 --on slurm --nodes 2:4 --ranks-per-node 8 --train.batch 96 "
            "--dry-run",
            r"where the launchers meet",
            lines=4,
        ),
        Row(
            "scaling",
            "Strong and weak scaling on local ranks",
            "interview.md#how-is-scaling-efficiency-measured",
            "stepladder bench scaling --steps 1",
            r"^scaling ranks",
            lines=5,
        ),
        Row(
            "slow-network",
            "Bandwidth between hosts, by size of the message",
            "communication.md",
            "stepladder lab run many-nodes",
            r"kib .*mb_per_s",
            lab="many-nodes",
            lines=4,
        ),
    ),
)

FAULTS = Part(
    "Faults",
    (
        Row(
            "checkpoint",
            "A checkpoint: every byte of it verified",
            "survival.md#checkpoints",
            "stepladder checkpoint verify runs/one",
            r"(?i)step-|verified|good",
            before=FIRST,
        ),
        Row(
            "exact-resume",
            "A run that is killed and resumed learns the same, to the bit",
            "sameness.md#a-run-that-is-killed-and-resumed",
            'stepladder verify resume --plan "fp32"',
            r"^plan ranks killed",
            lines=2,
        ),
        Row(
            "frequency",
            "How often to save: saves against steps that are made again",
            "interview.md#how-often-should-a-run-save",
            "stepladder lab run node-failure",
            r"best ",
            lab="node-failure",
        ),
        Row(
            "elastic",
            "A rank is lost, and the others go on",
            "survival.md#elastic",
            "stepladder lab run elastic",
            r"a rank is lost 7 ",
            lab="elastic",
            lines=2,
        ),
        Row(
            "hang",
            "A rank that hangs in a collective is named, with the line where it waits",
            "survival.md#hangs",
            'python -c "import stepladder as sl, torch.distributed as dist; '
            "sl.on_ranks(lambda: (dist.init_process_group('gloo'), dist.get_rank() or "
            'dist.barrier()), 2, timeout_seconds=30)"',
            r"did not finish within 30 s",
            exit_code=1,
        ),
        Row(
            "stragglers",
            "Stragglers: what ranks spend on waiting for each other",
            "profiling.md#ranks-that-others-wait-for",
            f"stepladder profile --ranks 2 --steps 1 {TRAIN}",
            r"^communication",
            lines=2,
            lab="overlap",
        ),
        Row(
            "nan",
            "A loss that is not finite: the step, the samples and the layer are named",
            "survival.md#numerical-faults",
            f"stepladder train --plan fp32 {TRAIN} --train.steps 8 --optimizer.name sgd "
            "--optimizer.lr 1e30",
            r"not finite",
            exit_code=2,
        ),
        Row(
            "silent-corruption",
            "Silent corruption: steps taken twice and compared",
            "sameness.md#a-watch-over-silent-corruption",
            f'stepladder train --plan "fp32 exact=runs recheck=2" {TRAIN} --train.steps 4',
            r"plan: fp32 .*recheck=2",
        ),
    ),
)

CLUSTER = (COLLECTIVES, NODES, FAULTS)
