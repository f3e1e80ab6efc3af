"""A run as one HTML file that needs nothing else: no script, no network, by day and by night."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .report_plots import Plot
from .tables import cell

STYLE = """
:root { color-scheme: light dark; --back: #f6f6f3; --card: #fff; --line: #e2e2dc; --text: #1d2125; --soft: #5c646d;
  --good: #2f7d4f; --warn: #9a5b00; --bad: #b3382c; --c0: #2458a6; --c1: #d1603d; --c2: #3a8f5c; --c3: #8a5fa8; --c4: #a38a2f; --c5: #5a6672; }
@media (prefers-color-scheme: dark) { :root { --back: #111417; --card: #181c20; --line: #2a3036; --text: #e6e9ec;
  --soft: #9aa4ae; --good: #6cc493; --warn: #e0a74a; --bad: #f08a7d;
  --c0: #73a9ff; --c1: #f08a66; --c2: #6cc493; --c3: #bd9ade; --c4: #d3b75c; --c5: #a3b0bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; background: var(--back); color: var(--text);
  font: 14.5px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 24px; letter-spacing: -.02em; margin: 0; } h2 { font-size: 15px; margin: 30px 0 8px; }
header p { color: var(--soft); margin: 4px 0 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 12px; }
figure, .card { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 11px; padding: 12px 16px; overflow-x: auto; }
figcaption { font-weight: 600; font-size: 13.5px; } figure svg { width: 100%; height: auto; display: block; } figure text { fill: currentColor; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 400; color: var(--soft); }
td, th { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; } tr:last-child td { border: 0; }
.n { text-align: right; white-space: nowrap; } .good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
@media print { figure, .card { break-inside: avoid; } }
"""  # noqa: E501 - a style sheet has its own measure
EVENTS = 200  # of the newest


def build_page(name: str, facts: dict[str, Any], plots: Sequence[Plot]) -> str:
    """The whole file."""
    parts = [
        f"<header><h1>{escape(name)}</h1><p>{escape(lead(facts))}</p></header>",
        section("Result", pairs(facts.get("summary"), leave_out=("kind", "sample"))),
        section("Plan", text_card(plan_text(facts))),
        section("Forecast against measured", comparison(facts["comparison"])),
        section("Where a step's time goes", verdict(facts.get("profile"))),
        section("Curves", gallery(plots)),
        section("Ranks", ranks(facts["ranks"])),
        section("Events", events(facts["events"])),
        section("Environment", pairs(facts.get("environment"))),
        section("Recipe", text_card(facts.get("recipe") or "")),
        section("Sample", text_card(str((facts.get("summary") or {}).get("sample") or ""))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} · stepladder</title><style>{STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
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
    return f'<div class="card"><table>{top}<tbody>{body}</tbody></table></div>'


def pairs(values: Any, leave_out: Sequence[str] = ()) -> str:
    known = values if isinstance(values, dict) else {}
    return table(
        (),
        (
            f"<tr><td>{escape(str(name))}</td><td>{escape(cell(value))}</td></tr>"
            for name, value in known.items()
            if name not in leave_out and value is not None
        ),
    )


def comparison(rows: Sequence[dict[str, Any]]) -> str:
    return table(("", "forecast", "measured", "off"), map(compared, rows))


def compared(row: dict[str, Any]) -> str:
    off = row["off"]
    look = (
        "" if off is None else "good" if abs(off) <= 0.1 else "warn" if abs(off) <= 0.25 else "bad"
    )
    said = "unknown" if off is None else f"{off:+.1%}"
    values = "".join(
        f'<td class="n">{escape(amount(row[name], row["unit"]))}</td>'
        for name in ("forecast", "measured")
    )
    return f'<tr><td>{escape(row["what"])}</td>{values}<td class="n {look}">{said}</td></tr>'


def amount(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    if unit == "B":
        return f"{value / 2**30:,.3g} GiB" if value >= 2**30 / 10 else f"{value / 2**20:,.3g} MiB"
    return f"{value * 1e3:,.4g} ms" if unit == "s" else cell(value)


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


def ranks(rows: Sequence[dict[str, Any]]) -> str:
    if len(rows) < 2:
        return ""
    columns = ("rank", "own time", "waiting", "memory", "")
    return table(columns, (rank_row(row) for row in rows))


def rank_row(row: dict[str, Any]) -> str:
    slow = "holds the others up" if row["straggles"] else ""
    cells = [
        amount(row["own_seconds"], "s"),
        amount(row["wait_seconds"], "s"),
        amount(row["memory_bytes"], "B"),
    ]
    inside = "".join(f'<td class="n">{escape(one)}</td>' for one in cells)
    return f'<tr><td>{row["rank"]}</td>{inside}<td class="n bad">{slow}</td></tr>'


def events(rows: Sequence[dict[str, Any]]) -> str:
    return table(
        (),
        (
            f"<tr><td>{escape(cell(row['step']))}</td><td>{escape(row['sort'])}</td>"
            f"<td>{escape(row['text'])}</td></tr>"
            for row in rows[-EVENTS:]
        ),
    )
