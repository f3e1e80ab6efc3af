"""Puts the figures of benchmarks/results into docs/survival.md: kills, hosts, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "results"


def kills(found: dict) -> str:
    head = (
        f"{found['kills']} kills in {found['minutes']:g} minutes on {found['machine']}, "
        f"{found['date']}; ranks trained again after a median of "
        f"{found['median seconds until ranks trained again']:g} s:"
    )
    return f"{head}\n\n{found['table']}"


def hosts(found: dict) -> str:
    lines = [f"{found['machine']}, {found['date']}; one rank a host:", ""]
    lines += [
        "| what | ranks that go on | seconds until they do | from step |",
        "|---|---|---|---|",
    ]
    for event in found["events"]:
        lines.append(
            f"| {event['what']} | {event['ranks']} | {event['seconds']} | {event['step']} |"
        )
    lines += [
        "",
        f"{found['steps']} steps; the largest relative difference of any step's loss is "
        f"{found['largest difference']:.1e}.",
        "",
    ]
    lines += ["| link | compression | step, ms | times faster |", "|---|---|---|---|"]
    for row in found["links"]:
        if row["problem"]:
            lines.append(f"| {row['link']} | {row['problem']} | | |")
        else:
            lines.append(
                f"| {row['link']} | {row['compress']} | {row['step_ms']:.0f} | "
                f"{row['against_none']:.2f} |"
            )
    return "\n".join(lines)


RATIOS = {
    "save, over torch.save as it comes": "save over torch.save, default",
    "save, over torch.save forced to the disk": "save over torch.save, forced",
    "save, over DCP": "save over DCP",
    "load, over torch.load as it comes": "load over torch.load, default",
    "load, over torch.load of a file hashed first": "load over torch.load, proven",
    "load, over DCP": "load over DCP",
}


def checkpoints(full: dict) -> str:
    """Each way over ours, on a machine at work for a while, on one just started, on a GPU."""
    others = [RESULTS / f"checkpoint_{name}.json" for name in ("cpu_empty", "gpu")]
    empty, gpu = (json.loads(path.read_text()) for path in others)
    runs = {
        f"{full['cores']} CPU cores, page cache full": full,
        "page cache emptied": empty,
        f"{gpu['device']}, {gpu['cores']} cores, by SHA-256": gpu,
    }
    lines = [
        f"| {full['state GiB']:.1f} GiB, {full['date']} | {' | '.join(runs)} |",
        "|---" * (1 + len(runs)) + "|",
    ]
    for said, key in RATIOS.items():
        lines.append(f"| {said} | {' | '.join(f'{run[key]:.2f}' for run in runs.values())} |")
    held = " | ".join(f"{run['stall']:.1%}" for run in runs.values())
    lines.append(f"| training held by a save in the background, of one waited for | {held} |")
    speeds, floor = full["GiB/s"], "floor of a load that proves all, seconds"
    lines += [
        "",
        f"With the cache full ours saved {speeds['save_ours']:.2f} and loaded "
        f"{speeds['load_ours']:.2f} GiB/s; a load took {full['load_ours over that floor']:.2f} of "
        f"its floor of {full[floor]:.3f} s, DCP's {full['load_dcp over that floor']:.2f} of it.",
    ]
    return "\n".join(lines)


BLOCKS = {
    "kills": ("chaos.json", kills),
    "hosts": ("hosts.json", hosts),
    "checkpoints": ("checkpoint_cpu.json", checkpoints),
}


def main() -> None:
    page = HERE / "survival.md"
    text = page.read_text()
    for name, (file, write) in BLOCKS.items():
        if (RESULTS / file).exists():
            block = write(json.loads((RESULTS / file).read_text()))
            start, end = f"<!-- {name} -->\n", "<!-- end -->"
            before, _, rest = text.partition(start)
            text = f"{before}{start}{block}\n{end}{rest.partition(end)[2]}"
    page.write_text(text)


if __name__ == "__main__":
    main()
