"""The README's figures, written from the results that the benchmarks left.

Run: python benchmarks/readme_figures.py   (a test holds the README against it)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def precisions() -> str:
    lines = [
        "| model, batch | plan | ms a step | against fp32 | peak GiB | loss |",
        "|---|---|---|---|---|---|",
    ]
    for table in read("precisions_gpu")["tables"]:
        rows = [row for row in table["rows"] if row["step_ms"]]
        for row in rows:
            lines.append(
                f"| {table['model']}, {table['batch']} | `{row['name']}` | {row['step_ms']:.1f} "
                f"| {rows[0]['step_ms'] / row['step_ms']:.2f} × | {row['peak_gib']:.1f} "
                f"| {row['loss']:.4f} |"
            )
    return "\n".join(lines)


def owners() -> str:
    def span(model: str, compiled: bool) -> str:
        shares = [
            row["tracked_owners_over_peak"]
            for table in read("precisions_gpu")["tables"]
            if table["model"] == model
            for row in table["rows"]
            if row["step_ms"] and ("compile" in row["name"]) == compiled
        ]
        return f"{min(shares):.1%} to {max(shares):.1%}"

    return (
        f"Of the peak, the owners tracked by name are {span('gpt2', False)} for eager GPT-2, "
        f"{span('resnet50', False)} for eager ResNet-50\nand {span('gpt2', True)} for compiled "
        "GPT-2; the rest is booked as temporary, which makes the sum exact by construction."
    )


def kernels() -> str:
    lines = [
        "| kernel | shape | against eager | against compiled |",
        "|---|---|---|---|",
    ]
    for row in read("kernels")["rows"]:
        shape = " × ".join(map(str, row["shape"]))
        eager, compiled = (row[key] / row["ours_ms"] for key in ("eager_ms", "compiled_ms"))
        lines.append(f"| `{row['kernel']}` | {shape} | {eager:.2f} × | {compiled:.2f} × |")
    return "\n".join(lines)


def overhead() -> str:
    found = read("step_overhead")
    ratios, steps = found["ratios"], found["steps_a_repeat"]
    low, high = min(ratios), max(ratios)
    return (
        f"{found['machine']}, {found['date']}, `python benchmarks/training/step_overhead.py`:\n"
        f"`run.step` takes {found['median_ratio']:.3f} × the time of the plainest hand-written "
        f"loop doing the same work\n(median of {len(ratios)} repeats, which lie between {low:.3f} "
        f"and {high:.3f}; {steps} steps each, taking turns)."
    )


def first() -> str:
    if not (RESULTS / "first_step.json").exists():
        return "How long a newcomer waits is measured by `python benchmarks/first_step.py`."
    found = read("first_step")
    return (
        f"From `git clone` to a first trained step {found['clone to first step seconds']:.0f} s, "
        f"to a first passed lab {found['clone to first lab seconds']:.0f} s,\nof which "
        f"{found['install seconds']:.0f} s are downloads and installation into a fresh environment "
        f"({found['machine']}, torch {found['torch']},\n{found['date']}, "
        "`python benchmarks/first_step.py`). torch's build for CUDA is some gigabytes more."
    )


FIGURES = {
    "first": first,
    "precisions": precisions,
    "owners": owners,
    "kernels": kernels,
    "overhead": overhead,
}


def filled(text: str) -> str:
    """The README with every figure as the results have it."""
    for name, make in FIGURES.items():
        block = f"<!-- {name} -->\n{make()}\n<!-- end -->"
        text = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _: block, text, flags=re.DOTALL)  # noqa: B023
    return text


def main() -> None:
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))


if __name__ == "__main__":
    main()
