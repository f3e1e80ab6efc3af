"""How far the planner is from training runs that other teams measured and published.

    python benchmarks/planner_published.py [--rows FILE.csv] [--write] [--list]

Every row becomes a workload, a plan and a cluster, and its forecast step time is set against the
published one. The planner's constants know nothing of a row; only what the row says of its
software is passed on: the attention kernel of its time, the type its gradients travelled in, and a
rule of selective recomputation that is not ours.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.hardware import Cluster
from stepladder.plan import PRECISIONS, Batch, Layout, Optimizer, Plan, Precision, Recompute
from stepladder.planner import Software, forecast
from stepladder.record import Forecast
from stepladder.workload import Facts, Shape, facts_of_shape

HERE = Path(__file__).parent
RESULTS = HERE / "results"
GIB = 2**30

DEVICES = {  # words of the hardware column, most telling first
    "variant not stated": "H100-96GB",  # torchao's authors share torchtitan's machines
    "96GB": "H100-96GB",
    "95GB": "H100-96GB",
    "H100": "H100-80GB",
    "H200": "H200",
    "B200": "B200",
    "A100 40GB": "A100-40GB",
    "A100": "A100-80GB",
    "A800": "A800",
    "MI300X": "MI300X",
    "V100": "V100-32GB",
}

# The first flash attention in Triton: 100 TFLOP/s on an A100, as FlashAttention-2 (Dao 2023)
# reports for its predecessor; on an H100 it gained no more than the doubled clock and processors.
TRITON_FLASH = {"A": 100e12, "H": 190e12}


@dataclass(frozen=True, slots=True)
class Run:
    """One published row and its forecast."""

    row: dict[str, str]
    device: str
    seconds: float | None  # published
    forecast: Forecast
    share: float  # of the forecast batch that the row's is

    @property
    def error(self) -> float | None:
        """Forecast over published, less one."""
        if self.seconds is None or self.forecast.time is None:
            return None
        return self.forecast.time.step_seconds * self.share / self.seconds - 1

    @property
    def source(self) -> str:
        return self.row["source"].split(" (")[0]

    @property
    def ran_out(self) -> bool:
        return self.row["oom"] == "y"

    @property
    def memory_gib(self) -> float | None:
        return float(self.row["peak_mem_gb"]) if self.row["peak_mem_gb"] else None


def read_run(row: dict[str, str]) -> Run:
    named = (name for words, name in DEVICES.items() if words in row["hardware"])
    device = next(named, row["hardware"].split()[0])
    facts, cluster = facts_of_row(row), cluster_of_row(row, device)
    plan = plan_of_row(row)
    found = forecast(facts, plan, cluster, software=software_of_row(row, device))
    share = int(row["global_batch_seqs"]) / (plan.batch.sequences or 1)
    return Run(row, device, published_seconds(row, facts), found, share)


def facts_of_row(row: dict[str, str]) -> Facts:
    """The shape whose number of parameters is nearest: that tells the family, and a tied head."""
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq_len")
    numbers = [int(row[name] or row["heads"]) for name in names]
    shapes = [Shape(f, *numbers, tied=t) for f in ("llama", "gpt") for t in (False, True)]
    parameters = float(row["params_b"]) * 1e9
    shape = min(shapes, key=lambda each: abs(each.parameters - parameters))
    return facts_of_shape(shape, name=row["model"])


def cluster_of_row(row: dict[str, str], device: str) -> Cluster:
    ranks = int(row["n_gpus"])
    each = max(n for n in range(1, 9) if ranks % n == 0)
    nodes = ranks // each
    text = f"{nodes} nodes x {each} {device}"
    known = row["interconnect_if_known"]
    if found := re.search(r"(\d+)x(\d+) Gb", known):
        text += f", {int(found[1]) * int(found[2])} Gb/s"
    elif found := re.search(r"(\d+) Gbps/node", known):
        text += f", {found[1]} Gb/s"
    elif found := re.search(r"(\d+) Gb/s per", known):
        text += f", {found[1]} Gb/s per GPU"
    return Cluster.parse(text)


def plan_of_row(row: dict[str, str]) -> Plan:
    data, zero = int(row["dp"]), {"ddp": 0, "zero1": 1, "zero2": 2}.get(row["sharding"], 3)
    group = re.search(r"ZeRO-1 group (?:size )?(\d+)", row["notes"])
    shard = min(int(group[1]), data) if group else data
    layout = Layout(
        pipeline=int(row["pp"]),
        replicate=data if zero == 0 else data // shard,
        shard=1 if zero == 0 else shard,
        context=int(row["cp"]),
        tensor=int(row["tp"]),
    )
    return Plan(
        precision=precision_of_row(row),
        layout=layout,
        zero=zero,  # type: ignore[arg-type]
        batch=whole_batch(row),
        recompute=recompute_of_row(row),
        compile=row["compile"] == "y",
        attention="plain" if re.search("plain|eager", row["attention_impl"]) else "auto",
        optimizer=Optimizer(clip=1.0),
    )


def whole_batch(row: dict[str, str]) -> Batch:
    """The row's batch; where micro-batches do not divide it, the next one that they do."""
    data, sequences = int(row["dp"]), int(row["global_batch_seqs"])
    passes = int(row["grad_accum"] or 1)
    micro = int(float(row["micro_batch_seqs"] or sequences / data / passes))
    rounds = -(-sequences // (micro * data))
    return Batch(micro * rounds * data, micro)


def precision_of_row(row: dict[str, str]) -> Precision:
    precision = PRECISIONS[row["precision"]]
    in_half = "mp_mode=PURE" in row["notes"] or "InternEvo" in row["source"]
    return replace(precision, reduce="bfloat16") if in_half else precision


def recompute_of_row(row: dict[str, str]) -> Recompute:
    if "selective layer" in row["notes"]:
        return Recompute("every", every=2)
    kinds = {
        "none": Recompute(),
        "full": Recompute("blocks"),
        "selective": Recompute("selective"),
    }
    return kinds[row["activation_checkpointing"] or "none"]


def software_of_row(row: dict[str, str], device: str) -> Software:
    """What the notes and the projects' own code say of the software that ran."""
    if "llm-foundry" in row["source"]:
        return Software(
            loss="fused",
            stops_early="torch1" not in row["notes"],  # since torch 2.0
            attention_flops_per_second=TRITON_FLASH[device[0]],
        )
    if re.search("nanotron|megatron|nemo", row["source"], re.I):
        return Software(
            keeps_logits=True, regathers=True, masters=True, gradient="float32", adds_later=True
        )
    if "InternEvo" in row["source"]:
        # Its optimizer's step holds the gradients once more in bf16, flat, and in fp32, and torch's
        # update without fusion the root of the second moment: 2 + 4 + 4 (hybrid_zero_optim.py).
        return Software(keeps_logits=True, regathers=True, masters=True, update_bytes=10.0)
    if re.search("torchtitan|/ao", row["source"]):
        asynchronous = re.search("async ?tp", row["notes"], re.I)
        eight = row["precision"] == "fp8" and "rowwise" not in row["notes"]  # rowwise: bf16 travels
        return Software(
            compiles_loss=True,
            keeps_logits=True,
            products_again=0.5,
            hides_tensor=bool(asynchronous),
            gather="float8" if eight else None,
        )
    return Software()


def published_seconds(row: dict[str, str], facts: Facts) -> float | None:
    if row["step_time_s"]:
        return float(row["step_time_s"])
    if not row["tokens_per_s_per_gpu"]:
        return None
    tokens = int(row["global_batch_seqs"]) * facts.tokens
    return tokens / (float(row["tokens_per_s_per_gpu"]) * int(row["n_gpus"]))


def summarise(name: str, errors: Iterable[float]) -> list[str]:
    signed = sorted(errors)
    sizes = sorted(abs(error) for error in signed)
    tenth = sizes[min(round(0.9 * (len(sizes) - 1)), len(sizes) - 1)]
    bias = statistics.median(signed)
    cells = (statistics.median(sizes), tenth, sizes[-1])
    return [name, str(len(sizes)), *(f"{cell:.1%}" for cell in cells), f"{bias:+.1%}"]


def table(runs: list[Run], key: Callable[[Run], str]) -> list[list[str]]:
    names = sorted({key(run) for run in runs})
    groups = {
        name: [r.error for r in runs if key(r) == name and r.error is not None] for name in names
    }
    rows = [summarise(name, errors) for name, errors in groups.items() if errors]
    return [*rows, summarise("all", [r.error for r in runs if r.error is not None])]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


HEAD = ["", "rows", "median", "90th percentile", "worst", "bias"]


def write_report(runs: list[Run], command: str) -> str:
    ran = [run for run in runs if not run.ran_out]
    refused = [run for run in ran if not run.forecast.fits]
    promised = [run for run in runs if run.ran_out and run.forecast.fits]
    low = [run for run in ran if run.memory_gib and reserved_gib(run) < run.memory_gib]
    counted = [run for run in ran if run.memory_gib]
    beyond = [run for run in low if most_gib(run) < (run.memory_gib or 0.0)]
    worst = sorted((r for r in runs if r.error is not None), key=lambda r: -abs(r.error or 0))[:18]
    rows = [
        [r.row["id"], r.device, r.row["n_gpus"], r.row["model"], f"{r.error:+.0%}"] for r in worst
    ]
    return (
        "\n\n".join(
            [
                "# The planner against published runs",
                f"{datetime.date.today()}, `{command}`. Errors are of the step time.",
                "## By source\n\n" + markdown(HEAD, table(runs, lambda run: run.source)),
                "## By hardware\n\n" + markdown(HEAD, table(runs, lambda run: run.device)),
                "## Memory\n\n"
                f"- rows that ran: {len(ran)}; forecast not to fit: {len(refused)}"
                f" {[run.row['id'] for run in refused] or ''}\n"
                f"- rows that ran out of memory: {len(runs) - len(ran)}; forecast to fit: "
                f"{len(promised)} {[run.row['id'] for run in promised] or ''}\n"
                f"- rows with a published peak: {len(counted)}; forecast below it: {len(low)} "
                f"{[run.row['id'] for run in low] or ''}\n"
                f"- of those, beyond the forecast's interval: {len(beyond)} "
                f"{[run.row['id'] for run in beyond] or ''}",
                "## Farthest off\n\n"
                + markdown(["row", "device", "devices", "model", "error"], rows),
            ]
        )
        + "\n"
    )


def reserved_gib(run: Run) -> float:
    """What torch would report as reserved: the runtime's own memory is not in it."""
    return (run.forecast.memory.peak_bytes - run.forecast.memory.context) / GIB


def most_gib(run: Run) -> float:
    """The upper end of the same."""
    assert run.forecast.peak_bytes is not None
    return (run.forecast.peak_bytes.high - run.forecast.memory.context) / GIB


def plot(runs: list[Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 7))
    for source in sorted({run.source for run in runs}):
        own = [r for r in runs if r.source == source and r.error is not None]
        forecasts = [(1 + (r.error or 0)) * (r.seconds or 0) for r in own]
        axes.scatter([r.seconds for r in own], forecasts, s=14, label=source)
    ends = [0.1, 400]
    axes.plot(ends, ends, color="grey", linewidth=1)
    for factor in (0.8, 1.25):
        axes.plot(ends, [end * factor for end in ends], color="grey", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="published step, s", ylabel="forecast step, s")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=HERE / "published.csv")
    parser.add_argument("--write", action="store_true", help="keep the report and draw the scatter")
    parser.add_argument("--list", action="store_true", help="print every row")
    options = parser.parse_args()
    with options.rows.open() as file:
        runs = [read_run(row) for row in csv.DictReader(file)]
    if options.list:
        for run in runs:
            print_run(run)
    report = write_report(runs, "python benchmarks/planner_published.py --write")
    print(report)
    if options.write:
        (RESULTS / "planner_published.md").write_text(report)
        plot(runs, RESULTS / "planner_published.png")
    errors = sorted(abs(run.error) for run in runs if run.error is not None)
    met = statistics.median(errors) <= 0.08 and errors[round(0.9 * (len(errors) - 1))] <= 0.20
    return 0 if met else 1


def print_run(run: Run) -> None:
    time, row = run.forecast.time, run.row
    assert time is not None
    causes = " ".join(f"{c}={s / time.step_seconds:.0%}" for c, s in time.by_cause().items() if s)
    error = "" if run.error is None else f"{run.error:+.1%}"
    memory = f"{reserved_gib(run):.0f} GiB (published {run.memory_gib})"
    words = (row["id"], run.device, row["n_gpus"], row["model"], error, memory, causes)
    print(*words, run.forecast.plan if run.forecast.fits else "DOES NOT FIT")


if __name__ == "__main__":
    sys.exit(main())
