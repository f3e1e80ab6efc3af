"""Fills the tables of the pages in docs: `python docs/tables.py` (a test holds the pages to it).

A page asks for one by a comment, and everything up to `<!-- end -->` is written here:

    <!-- forecast: llama3-8b on 8 x H100-80GB        <!-- measured: zero -->
    bf16 ddp micro=1 batch=8
    bf16 zero3 micro=1 batch=8
    -->

A forecast is the planner's, of today's code; `names` are those of stepladder.seam, `labs` those of
the course. What was
measured is what the benchmarks left in benchmarks/results, with its date and machine. The pictures
of docs/figures.py show the same rows.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepladder.hardware import Cluster
from stepladder.labs import all_labs
from stepladder.plan import Plan
from stepladder.planner import forecast
from stepladder.record import Forecast
from stepladder.seam import NAMES
from stepladder.workload import find_facts

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
ASKED = re.compile(r"<!-- (forecast|measured|names|labs): (.*?)-->\n.*?<!-- end -->", re.DOTALL)
GIB = 2**30


@dataclass(frozen=True)
class Asked:
    """The plans a page compares, on one model and cluster."""

    model: str
    cluster: str
    plans: tuple[str, ...]

    @classmethod
    def read(cls, words: str) -> Asked:
        head, *plans = words.strip().splitlines()
        model, _, cluster = head.partition(" on ")
        return cls(model.strip(), cluster.strip(), tuple(plans))

    def forecasts(self) -> list[tuple[str, Forecast]]:
        facts, cluster = find_facts(self.model), Cluster.parse(self.cluster)
        return [(words, forecast(facts, Plan.parse(words), cluster)) for words in self.plans]


def asked(page: str) -> list[Asked]:
    return [Asked.read(words) for kind, words in ASKED.findall(page) if kind == "forecast"]


def lines(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(columns)
    table = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def forecast_table(words: str) -> str:
    case = Asked.read(words)
    rows = []
    for plan, found in case.forecasts():
        seconds, speed = found.time, found.tokens_per_second_per_device
        rows.append(
            [
                f"`{plan}`",
                f"{found.memory.peak_bytes / GIB:.1f}",
                "yes" if found.fits else "**no**",
                f"{seconds.step_seconds:.3g} s" if seconds else "unknown",
                f"{speed:,.0f}" if speed else "unknown",
                f"{found.mfu:.0%}" if found.mfu else "unknown",
            ]
        )
    head = f"Forecast, not measured: `{case.model}` on {case.cluster}."
    columns = ["plan", "GiB a device", "fits", "step", "tokens/s a device", "MFU"]
    return f"{head}\n\n{lines(columns, rows)}"


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def origin(kept: dict[str, Any], command: str) -> str:
    torch = f", torch {kept['torch']}" if "torch" in kept else ""
    return f"Measured on {kept['date']}: {kept['machine']}{torch}, `{command}`."


def at_load(kept: dict[str, Any], command: str) -> str:
    """Where and when, and how many processes wanted the processor: times are to be read with it."""
    return f"{origin(kept, command)} Load of other work: {kept['load']:.1f}."


def precision() -> str:
    kept = read("precisions_gpu")
    rows = []
    for table in kept["tables"]:
        ran = [row for row in table["rows"] if row["step_ms"]]
        for row in ran:
            faster = ran[0]["step_ms"] / row["step_ms"]
            rows.append(
                [
                    f"{table['model']}, {table['batch']}",
                    f"`{row['name']}`",
                    f"{row['step_ms']:.1f}",
                    f"{faster:.2f} ×",
                    f"{row['peak_gib']:.1f}",
                ]
            )
    columns = ["model, batch", "plan", "ms a step", "against fp32", "peak GiB"]
    return (
        origin(kept, "python benchmarks/training/precisions_gpu.py") + "\n\n" + lines(columns, rows)
    )


def accumulation() -> str:
    kept = read("accumulation")
    rows = [
        [
            str(row["micro_batches"]),
            str(row["micro"]),
            f"{row['step_ms']:.0f}",
            f"{row['activation_bytes'] / 2**20:.1f}",
            f"{row['losses'][-1]:.4f}",
            f"{row['difference']:.1e}",
        ]
        for row in kept["rows"]
    ]
    columns = [
        "micro-batches",
        "micro",
        "ms a step",
        "activations MiB",
        "last loss",
        "largest difference",
    ]
    return origin(kept, kept["command"]) + "\n\n" + lines(columns, rows)


def recomputation() -> str:
    kept = read("planner_gpu")
    cases = {row["case"]: row for row in kept["cases"]}
    rows = []
    for model in ("gpt", "llama", "vit", "hugging-gpt2", "hugging-llama"):
        plain = cases[f"{model}: bf16 rows=8x1"]
        for how, case in (
            ("none", plain),
            ("selective", cases[f"{model}: bf16 recompute=selective rows=8x1"]),
            ("blocks", cases[f"{model}: bf16 recompute=blocks rows=8x2"]),
        ):
            per_row = case["step_seconds"] / rows_of(case)
            rows.append(
                [
                    model,
                    f"`recompute={how}`",
                    f"{case['allocated_bytes'] / GIB:.1f}",
                    f"{per_row * 1e3:.2f}",
                    f"{per_row / (plain['step_seconds'] / rows_of(plain)):.2f} ×",
                ]
            )
    columns = ["model", "plan", "allocated GiB", "ms a sample", "time"]
    command = "python benchmarks/planner/forecast_gpu.py --out benchmarks/results"
    return origin(kept, command) + "\n\n" + lines(columns, rows)


def rows_of(case: dict[str, Any]) -> int:
    return Plan.parse(case["plan"]).batch.sequences or 1


def scaling() -> str:
    kept = read("scaling")
    rows = [
        [
            row["kind"],
            str(row["ranks"]),
            str(row["batch"]),
            f"{row['step_ms']:.0f}",
            f"{row['samples_per_second']:.0f}",
            f"{row['efficiency']:.0%}",
        ]
        for row in kept["rows"]
    ]
    columns = ["scaling", "ranks", "batch", "ms a step", "samples/s", "efficiency"]
    return origin(kept, kept["command"]) + "\n\n" + lines(columns, rows)


def zero() -> str:
    kept = read("zero")
    rows = [
        [
            f"`{row['plan']}`",
            *(f"{row['measured'][owner] / 2**20:.2f}" for owner in ZERO_OWNERS),
            f"{row['error']:.1%}",
            f"{row['peak_bytes'] / 2**20:.2f}",
            f"{row['sent_bytes'] / 2**20:.2f}",
            f"{row['samples_per_second'] / kept['rows'][0]['samples_per_second']:.2f}",
        ]
        for row in kept["rows"]
    ]
    columns = ["plan", *(f"{owner} MiB" for owner in ZERO_OWNERS), "off the forecast"]
    columns += ["peak MiB", "sent MiB a step", "throughput, of ddp's"]
    return origin(kept, kept["command"]) + "\n\n" + lines(columns, rows)


ZERO_OWNERS = ("parameters", "gradients", "optimizer")


def compression() -> str:
    kept = read("compression")
    rows = [
        [
            row["link"],
            f"`compress={row['compress']}`",
            f"{row['step_ms']:.0f}",
            f"{row['against_none']:.2f} ×",
            f"{row['loss']:.4f}",
        ]
        for row in kept["rows"]
        if not row["problem"]
    ]
    columns = ["link", "plan", "ms a step", "times faster", "loss"]
    return origin(kept, kept["command"]) + "\n\n" + lines(columns, rows)


def matmul() -> str:
    kept = read("matmul")
    rows = [
        [
            row["name"],
            str(row["size"]),
            f"{row['seconds'] * 1e3:.3g}",
            f"{row['flops_per_second'] / 1e9:.3g}",
            f"{row['times_first']:,.0f} ×",
            f"{100 * row['share_of_peak']:.3g}%",
        ]
        for row in kept["rows"]["matmuls"]
    ]
    columns = ["way", "size", "ms", "GFLOP/s", "against the first", "of the peak"]
    return at_load(kept, kept["command"]) + "\n\n" + lines(columns, rows)


def walls(word: str) -> str:
    """One of the three walls, as it was met on local ranks."""
    kept = read("walls")
    found = kept["rows"]
    if word == "compute":
        rows = [[str(row["ranks"]), f"{row['times_faster']:.2f} ×"] for row in found["timed"]]
        return f"{at_load(kept, kept['command'])}\n\n{lines(['ranks', 'times faster'], rows)}"
    shown = [row for row in found["counted"] if word in row["walls"]]
    plain = shown[0]
    rows = []
    for row in shown:
        cells = [row["name"], f"`{row['counted']['words']}`"]
        if word == "memory":
            cells += [
                f"{row['peak_bytes'] / 2**20:.1f}",
                f"{row['peak_bytes'] / plain['peak_bytes']:.0%}",
                "passes" if row["peak_bytes"] <= found["budget_bytes"] else "needs more",
            ]
        else:
            cells += [
                f"{row['counted']['sent_bytes'] / 1024:,.0f}",
                f"{row['sent_per_sample'] / 1024:.1f}",
                f"{row['sent_per_sample'] / plain['sent_per_sample']:.0%}",
            ]
        rows.append(cells)
    columns = {
        "memory": ["way", "plan", "MiB a rank", "of plain", "budget"],
        "communication": ["way", "plan", "KiB a step", "KiB a sample", "of plain"],
    }[word]
    budget = f" The budget is {found['budget_bytes'] / 2**20:.1f} MiB." if word == "memory" else ""
    return f"{at_load(kept, kept['command'])}{budget}\n\n{lines(columns, rows)}"


def equal_devices() -> str:
    kept = read("pipeline")
    found = kept["rows"]["equal_devices"]
    plain, held = (
        found["DDP"],
        {name: sum(row["memory"].values()) for name, row in found.items()},
    )
    rows = [
        [
            name,
            f"`{row['words']}`",
            f"{held[name] / 2**20:.1f}",
            f"{held[name] / held['DDP']:.0%}",
            f"{row['sent_bytes'] / 1024:,.0f}",
            f"{row['sent_bytes'] / plain['sent_bytes']:.0%}",
            f"{row['seconds'] / plain['seconds']:.2f} ×",
        ]
        for name, row in found.items()
    ]
    columns = ["way", "plan", "MiB, fullest rank", "of DDP", "KiB sent by a rank", "of DDP", "time"]
    return f"{at_load(kept, kept['command'])}\n\n{lines(columns, rows)}"


def kernels() -> str:
    kept = read("kernels")
    rows = [
        [
            f"`{row['kernel']}`",
            " × ".join(map(str, row["shape"])),
            f"{row['eager_ms'] / row['ours_ms']:.2f} ×",
            f"{row['compiled_ms'] / row['ours_ms']:.2f} ×",
        ]
        for row in kept["rows"]
        if row["ours_ms"]
    ]
    head = origin({**kept, "machine": kept["device"]}, "python benchmarks/kernels/kernels.py")
    columns = ["kernel", "shape", "against eager", "against compiled"]
    return f"{head} Above 1 is faster than torch.\n\n{lines(columns, rows)}"


def parity(word: str) -> str:
    """Rows of the parity table whose plan says `word`."""
    kept = read("parity")
    asked = [row for row in kept["rows"] if word in row["plan"]]
    kept["date"] = max((row["date"] for row in asked), default=kept["date"])
    rows = [
        [
            row["model"],
            f"`{row['plan']}`",
            str(row["ranks"]),
            f"{row['sgd']['loss']:.1e}",
            f"{row['sgd']['norm']:.1e}",
            row["state"]["word"] if row["state"] else "not forecast",
        ]
        for row in asked
    ]
    columns = ["model", "plan", "ranks", "loss, SGD", "gradient norm", "bytes against forecast"]
    return origin(kept, "python benchmarks/parity/parity_table.py") + "\n\n" + lines(columns, rows)


def experts() -> str:
    """A mixture on one GPU beside Hugging Face's."""
    kept = read("experts_gpu")
    arms = kept["arms"]
    ours = arms["ours"]["tokens_per_second"]
    rows = [
        [
            name,
            f"{row['tokens_per_second']:,.0f}",
            f"{row['mfu']:.1%}",
            f"{ours / row['tokens_per_second']:.2f} ×",
        ]
        for name, row in arms.items()
    ]
    command = "python benchmarks/experts_gpu.py --rounds 2 --steps 3 --profile"
    columns = ["", "tokens/s", "MFU of active parameters", "ours against it"]
    return origin(kept, command) + "\n\n" + lines(columns, rows)


def muon() -> str:
    """Losses of text by the best rate of each optimizer, and the time of a step."""
    kept = read("muon_gpu")
    rows = [
        [f"`{row['words']}`", f"{fmean(finals):.3f}", f"{min(finals):.3f} to {max(finals):.3f}"]
        for row in kept["losses"]
        if (finals := list(row["finals"].values()))
    ]
    times = []
    for table in kept["tables"]:
        adamw = table["rows"]["adamw"]
        for name, row in table["rows"].items():
            cells = [
                f"{row['step']:.3f}",
                f"{row['step'] / adamw['step']:.3f} ×",
                f"{1e3 * row['update']:.1f}",
            ]
            times.append([table["model"], name, *cells, f"{row['peak'] / GIB:.1f}"])
    return "\n\n".join(
        [
            origin(kept, "python benchmarks/training/muon_gpu.py"),
            lines(["optimizer", "loss of the last tenth", "seeds"], rows),
            lines(
                ["model", "optimizer", "s a step", "of AdamW's", "ms of it the update", "peak GiB"],
                times,
            ),
        ]
    )


def lora() -> str:
    """Adapters beside the loop that a user of peft would write."""
    kept = [row for row in read("lora_gpu") if "ms" in row]
    loops = {row["arm"]: row["ms"] for row in kept if row["arm"].startswith("peft")}
    rows = [
        [
            f"`{row['arm']}`",
            f"{row['ms']:.1f}",
            *(f"{ms / row['ms']:.2f} ×" for ms in loops.values()),
            f"{row['held_gib']:.2f}",
        ]
        for row in kept
    ]
    head = origin({**kept[0], "machine": kept[0]["gpu"]}, "python benchmarks/lora_gpu.py")
    columns = ["", "ms a step", *(f"times as fast as {name}" for name in loops), "held GiB"]
    return f"{head}\n\n{lines(columns, rows)}"


def adapter_bytes() -> str:
    """What frozen parameters cost the fullest rank when adapters are trained."""
    kept = read("adapter_bytes")
    rows = [
        [
            f"`{row['plan']}`, `{row['adapters']}`",
            str(row["ranks"]),
            f"{row['frozen_bytes_each']:.2f}",
            str(max(map(sum, zip(row["frozen_gradients"], row["frozen_state"])))),
            *(f"{max(row[key]) / 1024:.1f}" for key in ("frozen", "trained", "state", "live")),
        ]
        for row in kept["rows"]
    ]
    columns = ["plan, adapters", "ranks", "bytes of a frozen parameter", "its gradients and state"]
    columns += ["frozen KiB", "trained KiB", "state KiB", "all tensors KiB"]
    return f"{origin(kept, kept['command'])}\n\n{lines(columns, rows)}"


def state_losses() -> str:
    """Losses of text with the state in fewer bytes, beside fp32's of the same seeds."""
    kept = read("optimizer_state")
    rows = [
        [
            f"`{row['plan']}`",
            f"{fmean(row['finals']):.4f}",
            f"{min(row['finals']):.4f} to {max(row['finals']):.4f}",
            f"{fmean(row['apart']):+.2%}",
            ", ".join(f"{share:+.2%}" for share in row["apart"]),
        ]
        for row in kept["rows"]
    ]
    columns = ["plan", "loss of the last tenth", "seeds", "from fp32, mean", "by seed"]
    return f"{origin(kept, kept['command'])}\n\n{lines(columns, rows)}"


def large_state() -> str:
    """A shape of 8 B on one GPU, with its state in fewer bytes."""
    kept = read("optimizer_state_gpu")
    rows = [
        [
            f"`{row['plan'].partition(' recompute')[0]}`",
            str(row["rows"]),
            *(
                ["does not fit", "–", "–"]
                if "failed" in row
                else [
                    f"{row['tokens_per_second']:,.0f}",
                    f"{row['peak_gib']:.1f}",
                    f"{row['reserved_gib']:.1f}",
                ]
            ),
        ]
        for row in kept["large"]
    ]
    columns = ["plan", "rows of 4,096", "tokens/s", "peak GiB", "reserved GiB"]
    command = "python benchmarks/optimizer_state_gpu.py --only large"
    return f"{origin(kept, command)}\n\n{lines(columns, rows)}"


def launchers() -> str:
    kept = read("launchers")
    rows = [
        [
            f"`{row['place']}`",
            row["what"],
            str(row["starts"]),
            str(row["steps taken again"]),
            f"{float.fromhex(row['last loss'])!r}",
            "yes" if row["same bits"] else "**no**",
        ]
        for row in kept["rows"]
    ]
    columns = ["on", "what happened", "starts", "steps taken again", "last loss", "same bits"]
    return origin(kept, "python -m tests.services.everywhere") + "\n\n" + lines(columns, rows)


def loader() -> str:
    kept = read("loader")
    rates = {name: value / 1e6 for name, value in kept["tokens per second"].items()}
    best = max(value for name, value in rates.items() if name.startswith("torch"))
    rows = [[name, f"{value:.0f}", f"{value / best:.2f} ×"] for name, value in rates.items()]
    resumed = ", ".join(
        f"{row['gigabytes']:g} GB {row['seconds'] * 1e3:.1f} ms" for row in kept["resume"]
    )
    table = lines(["loader", "M tokens/s", "against torch's fastest"], rows)
    says = f"From opening the source to the first batch, slowest of 7 positions: {resumed}."
    return f"{origin(kept, 'python benchmarks/data/loader.py')}\n\n{table}\n\n{says}"


def exact_ranks() -> str:
    kept = read("exact_ranks")
    problems, runs = kept["same_bits"], kept["same_bits"][0]["runs"]
    rows = [
        [
            str(row["ranks"]),
            f"`{row['layout']}`",
            f"{row['against_plain']:.2f} ×",
            f"{row['against_cut']:.2f} ×",
        ]
        for row in kept["price"]
    ]
    says = (
        f"{sum(row['same'] for row in problems)} of {len(problems)} problems (a transformer and a "
        "convolutional net, fp32 and bf16, SGD and AdamW with clipping, dropout) have one hash "
        f"over {len(runs)} runs on 1, 2, 4 and 8 ranks. Time of a step with `exact=ranks`:"
    )
    columns = ["ranks", "plan", "over the plan without", "over as many micro-batches without"]
    return f"{origin(kept, 'python benchmarks/exact_ranks.py')} {says}\n\n{lines(columns, rows)}"


ATTENTION = {
    "cudnn": "cuDNN, which does not repeat",
    "flash deterministic": "torch's deterministic flash",
    "exact": "in exact runs",
}


def exact_gpu() -> str:
    kept = read("exact_gpu")
    rows = kept["rows"]
    hashed = [row for row in rows if row["kind"] == "hashes" and "hash" in row["runs"]["first"]]
    plans, models = ({row[key] for row in hashed} for key in ("plan", "model"))
    repeated = [row["model"] for row in rows if row["kind"] == "plain" and row["same"]]
    plain = [row["model"] for row in rows if row["kind"] == "plain"]
    says = (
        f"{sum(row['same'] for row in hashed)} of {len(hashed)} pairs of a model and a plan "
        f"({', '.join(sorted(models))}; {len(plans)} plans, eager, compiled and with kernels, fp32 "
        f"to fp8) have one hash of every parameter, buffer, optimizer state and loss after "
        f"{hashed[0]['steps']} steps: from the start, again with empty compile caches, and resumed "
        f"at a random step in a new process. Without `exact`, {len(repeated)} of {len(plain)} "
        "plain bf16 models repeated by themselves"
        f"{' (' + ', '.join(repeated) + ')' if repeated else ''}. Time of a step with `exact`:"
    )
    prices = [
        [
            row["model"],
            f"`{row['plan']}`",
            f"{row['plain_ms']:.1f}",
            f"{row['ratio']:.2f} × ({row['lowest']:.2f} to {row['highest']:.2f})",
        ]
        for row in rows
        if row["kind"] == "price"
    ]
    attention = [
        [
            f"{row['plan']}, {row['model']}",
            *(" + ".join(f"{ms:.2f}" for ms in row[key]) for key in ATTENTION),
        ]
        for row in rows
        if row["kind"] == "attention"
    ]
    machine = {**kept, "machine": kept["device"]}
    flags = "--attention --hashes --plain --prices --default"
    head = origin(machine, f"python benchmarks/exact_gpu.py {flags}")
    defaults = [
        [
            row["model"],
            f"`{row['plan']}`",
            f"`{row['chosen']}`",
            price_found(row),
            "yes" if row.get("same") else "–",
        ]
        for row in rows
        if row["kind"] == "default" and "chosen" in row
    ]
    return "\n\n".join(
        [
            f"{head} {says}",
            lines(["model", "plan", "ms without", "price of `exact` (of 5 turns)"], prices),
            "Attention in bf16, milliseconds of forward + backward:",
            lines(["shape", *ATTENTION.values()], attention),
            "What `auto` keeps of it by default, where a trial finds no price:",
            lines(
                ["model", "plan", "chosen", "tried with deterministic algorithms", "repeats"],
                defaults,
            ),
        ]
    )


def price_found(row: dict[str, Any]) -> str:
    """What the trial of the same bits found, of the lines that tell what was tried."""
    told = next((line for line in reversed(row["tried"]) if "exact=free" in line), "not tried")
    return told.partition("exact=free")[2].partition(": ")[2].removeprefix("dropped, ") or told


def recheck() -> str:
    kept = read("recheck")
    rows = [
        [str(row["ranks"]), f"`{row['plan']}`", f"{row['more_steps']:.2f}", f"{row['price']:.4f} ×"]
        for row in kept["rows"]
    ]
    columns = ["ranks", "plan", "a rechecked step takes more, in steps", "price of `recheck=100`"]
    return f"{origin(kept, 'python benchmarks/recheck.py')}\n\n{lines(columns, rows)}"


def located_faults() -> str:
    kept = read("located_faults")
    faults, ran = kept["faults"], [row for row in kept["clean"] if not row["refused"]]
    says = (
        f"{sum(row['located'] for row in faults)} of {len(faults)} kinds of planted faults "
        "(reductions dropped or doubled, swapped shards, stale gathers, wrong masks, offsets, "
        "weights and states) are located to the right module and rank. "
        f"{sum(bool(row['alarm']) for row in ran)} false alarms in {len(ran)} runs without a fault "
        f"over {len({row['module'] for row in ran})} modules. Each is in "
        "`benchmarks/results/located_faults.md`."
    )
    return f"{origin(kept, 'python benchmarks/located_faults.py')} {says}"


def peers_deepspeed() -> str:
    """Both engines of a stage and optimizer in one row."""
    kept = read("peers_deepspeed")
    pairs = zip(kept["rows"][::2], kept["rows"][1::2])
    rows = []
    for ours, theirs in pairs:
        cells = [f"{ours[size]:.2f} / {theirs[size]:.2f}" for size in ("held_mib", "peak_mib")]
        off = " / ".join(f"{row['loss_difference']:.0e}" for row in (ours, theirs))
        pace = f"{theirs['times_ours']:.2f}"
        rows.append([str(ours["stage"]), ours["optimizer"], *cells, pace, off])
    columns = ["ZeRO", "optimizer", "MiB between steps", "MiB at a step's peak"]
    columns += ["DeepSpeed's step, times ours", "loss off a plain loop"]
    command = f"python benchmarks/peers/peers_deepspeed.py`, DeepSpeed `{kept['deepspeed']}"
    head = f"{origin(kept, command)} Ours before the slash, DeepSpeed behind it."
    return f"{head}\n\n{lines(columns, rows)}"


def published_mfu() -> str:
    """What others state of their runs in bf16, by device."""
    with (RESULTS.parent / "planner" / "published.csv").open(newline="") as file:
        kept = [
            row for row in csv.DictReader(file) if row["mfu_pct"] and row["precision"] == "bf16"
        ]
    stated: dict[str, list[float]] = {}
    for row in kept:
        stated.setdefault(row["hardware"], []).append(float(row["mfu_pct"]))
    rows = [
        [
            device,
            str(len(each)),
            *(f"{figure:.0f}%" for figure in (min(each), median(each), max(each))),
        ]
        for device, each in stated.items()
    ]
    sources = dict.fromkeys(row["source"].partition(" ")[0] for row in kept)
    head = (
        f"Published runs in bf16 that state their MFU, of {', '.join(sources)} "
        "(`benchmarks/planner/published.csv`)."
    )
    return f"{head}\n\n{lines(['device', 'runs', 'lowest', 'median', 'highest'], rows)}"


MEASURED: dict[str, Callable[[], str]] = {
    "precision": precision,
    "accumulation": accumulation,
    "adapter_bytes": adapter_bytes,
    "recomputation": recomputation,
    "scaling": scaling,
    "zero": zero,
    "compression": compression,
    "exact_gpu": exact_gpu,
    "exact_ranks": exact_ranks,
    "recheck": recheck,
    "kernels": kernels,
    "matmul": matmul,
    "equal_devices": equal_devices,
    "experts": experts,
    "large_state": large_state,
    "state_losses": state_losses,
    "launchers": launchers,
    "lora": lora,
    "muon": muon,
    "loader": loader,
    "located_faults": located_faults,
    "peers_deepspeed": peers_deepspeed,
    "published_mfu": published_mfu,
}


def measured_table(words: str) -> str:
    name, _, word = words.strip().partition(" ")
    by_word = {"parity": parity, "walls": walls}
    return by_word[name](word) if name in by_word else MEASURED[name]()


def names_table(_: str) -> str:
    """Private names of torch, those of one use in a row."""
    uses: dict[tuple[str, str], list[str]] = {}
    for name in NAMES:
        uses.setdefault((name.use, name.without), []).append(name.path)
    rows = (
        (f"`{owner_of(paths)}`: {words_of(paths)}", use, without)
        for (use, without), paths in uses.items()
    )
    return lines(("private name", "serves", "without it"), rows)


def owner_of(paths: list[str]) -> str:
    """What several names stand under, one after the other."""
    heads = [path.split(".")[:-1] for path in paths]
    shared = [words[0] for words in zip(*heads) if len(set(words)) == 1]
    return ".".join(shared)


def words_of(paths: list[str]) -> str:
    skipped = len(owner_of(paths)) + 1
    return ", ".join(f"`{path[skipped:]}`" for path in paths)


def labs_table(_: str) -> str:
    rows = (
        (f"`{lab.name}`", lab.title, str(lab.ranks), str(lab.seconds), f"`{lab.library}`")
        for lab in all_labs()
    )
    return lines(("lab", "about", "ranks", "seconds", "done properly by"), rows)


KINDS = {
    "forecast": forecast_table,
    "measured": measured_table,
    "names": names_table,
    "labs": labs_table,
}


def filled(page: str) -> str:
    """The page with every table written anew."""

    def write(found: re.Match[str]) -> str:
        kind, words = found[1], found[2]
        table = KINDS[kind](words)
        return f"<!-- {kind}: {words}-->\n{table}\n<!-- end -->"

    return ASKED.sub(write, page)


def main() -> None:
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if (new := filled(text)) != text:
            path.write_text(new)
            print(path.relative_to(DOCS))


if __name__ == "__main__":
    main()
