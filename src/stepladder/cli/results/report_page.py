"""A run as one HTML file that needs nothing else: no script, no network, by day and by night."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from stepladder.palette import style_sheet

from .report_plots import Plot
from .tables import cell, digits, signed_percent, size

STYLE = """
:root { color-scheme: light dark; --back: #f6f6f3; --card: #fff; --line: #e2e2dc; --text: #1d2125; --soft: #5c646d;
  --good: #2f7d4f; --warn: #9a5b00; --bad: #b3382c; }
@media (prefers-color-scheme: dark) { :root { --back: #111417; --card: #181c20; --line: #2a3036; --text: #e6e9ec;
  --soft: #9aa4ae; --good: #6cc493; --warn: #e0a74a; --bad: #f08a7d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; background: var(--back); color: var(--text);
  font: 14.5px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 24px; letter-spacing: -.02em; margin: 0; } h2 { font-size: 15px; margin: 30px 0 8px; }
header p { color: var(--soft); margin: 4px 0 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 12px; }
figure, .card { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 11px; padding: 12px 16px; overflow-x: auto; }
figure + figure { margin-top: 12px; } .grid figure { margin: 0; }
figcaption { font-weight: 600; font-size: 13.5px; } figure svg { width: 100%; height: auto; display: block; } figure text { fill: currentColor; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 400; color: var(--soft); }
td, th { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; } tr:last-child td { border: 0; }
.n { text-align: right; white-space: nowrap; } .good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
img.sample { image-rendering: pixelated; min-width: min(100%, 192px); max-width: 100%; display: block; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
@media print { figure, .card { break-inside: avoid; } }
"""  # noqa: E501 - a style sheet has its own measure
EVENTS = 200  # of the newest
MANY = 10  # times too much: no percentage says more


def build_page(
    name: str,
    facts: dict[str, Any],
    plots: Sequence[Plot],
    pictures: Callable[[str, int], bytes | None],
) -> str:
    """The whole file.

    Args:
        pictures: the PNG that was kept under a name at a step.
    """
    parts = [
        f"<header><h1>{escape(name)}</h1><p>{escape(lead(facts))}</p></header>",
        section("What ended it", text_card(facts.get("failure") or "")),
        section("Result", pairs(facts.get("summary"), leave_out=("kind", "sample"))),
        section("Plan", text_card(plan_text(facts))),
        section("Forecast against measured", comparison(facts["comparison"])),
        section("Where a step's time goes", verdict(facts.get("profile"))),
        section("Curves", gallery(plots)),
        section("Samples", samples(facts["samples"], pictures)),
        section("Ranks", ranks(facts["ranks"], facts["ranks_verdict"])),
        section("Events", events(facts["events"])),
        section("Environment", pairs(facts.get("environment"))),
        section("Recipe", text_card(facts.get("recipe") or "")),
        section("Sample", text_card(str((facts.get("summary") or {}).get("sample") or ""))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} · stepladder</title><style>{style_sheet()}{STYLE}</style></head>\n"
        f"<body>{parts[0]}<main>{''.join(parts[1:])}</main></body></html>\n"
    )


def lead(facts: dict[str, Any]) -> str:
    newest = facts.get("newest") or {}
    step = newest.get("step")
    words = [facts["state"]]
    if isinstance(step, int):
        words.append(f"{step + 1:,} steps, loss {cell(newest.get('loss'))}")
    if facts["starts"] > 1:
        words.append(f"started {facts['starts']} times")
    if facts["bad_lines"]:
        words.append(f"{facts['bad_lines']} lines of the journal could not be read")
    return " · ".join(words)


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>\n" if body else ""


def text_card(text: str) -> str:
    return f'<div class="card"><pre>{escape(text)}</pre></div>' if text else ""


def plan_text(facts: dict[str, Any]) -> str:
    because = facts.get("because")
    plan = facts.get("plan")
    lines = [str(plan) if plan else None, f"because: {because}" if because else None]
    return "\n".join(filter(None, lines))


def table(columns: Sequence[str], rows: Iterable[str]) -> str:
    body = "".join(rows)
    if not body:
        return ""
    head = "".join(
        f'<th class="{"n" if i else ""}">{escape(c)}</th>' for i, c in enumerate(columns)
    )
    top = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f'<div class="card" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>'


def pairs(values: Any, leave_out: Sequence[str] = ()) -> str:
    known = values if isinstance(values, dict) else {}
    return table(
        (),
        (
            f"<tr><td>{escape(str(name))}</td><td>{escape(cell(value))}</td></tr>"
            for name, value in known.items()
            if name not in leave_out and value not in (None, "nan", "")
        ),
    )


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    return table(("what", "forecast", "measured", "off"), map(compared, rows))


def compared(row: dict[str, Any]) -> str:
    off = row["off"]
    look = (
        "" if off is None else "good" if abs(off) <= 0.1 else "warn" if abs(off) <= 0.25 else "bad"
    )
    said = "–" if off is None else signed_percent(off) if off < MANY - 1 else f"× {off + 1:,.0f}"
    values = "".join(
        f'<td class="n">{escape(amount(row[name], row["unit"]))}</td>'
        for name in ("forecast", "measured")
    )
    return f'<tr><td>{escape(row["what"])}</td>{values}<td class="n {look}">{said}</td></tr>'


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "B":
        return size(value)
    return f"{digits(value * 1e3, 4)} ms" if unit == "s" else cell(value)


def verdict(profile: Any) -> str:
    if not isinstance(profile, dict):
        return ""
    lines = [str(profile.get("bound") or "")]
    findings, causes = profile.get("findings"), profile.get("causes")
    lines += [
        f"{one.get('text', '')}. {one.get('fix', '')}"
        for one in (findings if isinstance(findings, list) else ())
        if isinstance(one, dict)
    ]
    known = causes if isinstance(causes, dict) else {}
    lines += [
        f"{name}: {amount(spent, 's')}"
        for name, spent in known.items()
        if spent and isinstance(spent, int | float)
    ]
    return text_card("\n".join(filter(None, lines)))


def gallery(plots: Sequence[Plot]) -> str:
    figures = (
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg}</figure>"
        for plot in plots
    )
    return f'<div class="grid">{"".join(figures)}</div>' if plots else ""


def samples(rows: Sequence[dict[str, Any]], pictures: Callable[[str, int], bytes | None]) -> str:
    """The newest picture or text of each name."""
    newest = {row["name"]: row for row in reversed(rows)}
    return "".join(
        f"<figure><figcaption>{escape(name)}, step {row['step']:,}</figcaption>"
        + (picture(name, pictures(name, row["step"])) if row["text"] is None else preformatted(row))
        + "</figure>"
        for name, row in newest.items()
    )


def picture(name: str, png: bytes | None) -> str:
    data = b64encode(png or b"").decode()
    return f'<img class="sample" alt="{escape(name)}" src="data:image/png;base64,{data}">'


def preformatted(row: dict[str, Any]) -> str:
    return f"<pre>{escape(row['text'])}</pre>"


def ranks(rows: Sequence[dict[str, Any]], said: str) -> str:
    if len(rows) < 2:
        return ""
    columns = ("rank", "own time", "waiting", "memory", "verdict")
    return f"<p>{escape(said)}</p>" + table(columns, (rank_row(row) for row in rows))


def rank_row(row: dict[str, Any]) -> str:
    slow = "holds the others up" if row["straggles"] else ""
    cells = [
        amount(row["own_seconds"], "s"),
        amount(row["wait_seconds"], "s"),
        amount(row["memory_bytes"], "B"),
    ]
    inside = "".join(f'<td class="n">{escape(one)}</td>' for one in cells)
    return f'<tr><td>{row["rank"]}</td>{inside}<td class="bad">{slow}</td></tr>'


def events(rows: Sequence[dict[str, Any]]) -> str:
    return table(
        (),
        (
            f"<tr><td>{escape(cell(row['step']))}</td><td>{escape(row['sort'])}</td>"
            f"<td>{escape(row['text'])}</td></tr>"
            for row in rows[-EVENTS:]
        ),
    )
