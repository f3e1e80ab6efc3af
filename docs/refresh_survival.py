"""Puts the figures of benchmarks/results/chaos.json and hosts.json into docs/survival.md."""

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


def main() -> None:
    page = HERE / "survival.md"
    text = page.read_text()
    for name, file, write in (("kills", "chaos.json", kills), ("hosts", "hosts.json", hosts)):
        if (RESULTS / file).exists():
            block = write(json.loads((RESULTS / file).read_text()))
            start, end = f"<!-- {name} -->\n", "<!-- end -->"
            before, _, rest = text.partition(start)
            text = f"{before}{start}{block}\n{end}{rest.partition(end)[2]}"
    page.write_text(text)


if __name__ == "__main__":
    main()
