"""Writes the tables of docs/words.md: `python docs/words.py` (a test holds the page to them).

Keys and defaults are those of the parser. What a key means is the comment beside it in the source,
or is said here where the source has none. The table of a plan's words is written by hand, and a
test compares it with the parser.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import Any

from stepladder.plan import Optimizer, Rate
from stepladder.plan.learning_rate import KINDS
from stepladder.plan.optimizer import MOMENTS
from stepladder.plan.recipe import SECTIONS

PAGE = Path(__file__).parent / "words.md"
ASKED = re.compile(r"<!-- keys: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
COMMENT = re.compile(r"^ {4}(\w+): [^#\n]+  # (.+)$", re.MULTILINE)
SAID = {  # where the source has no comment, or one for who reads the source
    "model.dropout": "share of activations that dropout sets to zero",
    "data.seed": "of the order of samples",
    "data.workers": "threads or processes that read ahead: `2`, `2 processes`, `auto`",
    "train.steps": "optimizer steps of the run",
    "train.seed": "of dropout and the first weights",
    "train.device": "`auto`, `cpu` or `cuda`",
    "train.report_every": "steps between two reports",
    "train.evaluate_every": "steps between two evaluations on held-out data; 0: none",
    "train.evaluate_batches": "batches of an evaluation",
    "train.save_every": "steps between two checkpoints; 0: at the end only",
    "train.reference_batch": "the batch that the learning rate was found with",
    "run.resume": "go on from the latest checkpoint of the folder",
    "optimizer.name": ", ".join(f"`{name}`" for name in MOMENTS),
    "optimizer.lr": "the learning rate at its peak",
    "optimizer.eps": "added to the denominator of Adam",
    "optimizer.clip": "largest norm of all gradients together; `none`: no clipping",
    "rate.kind": ", ".join(f"`{kind}`" for kind in KINDS),
}
UNWRITTEN = ("state", "groups")  # fields that no recipe has a key for
GROUP = (
    "| `optimizer.group` | – | such as `*.bias:wd=0`: other settings, `lr=x0.1` and `wd=0`, for "
    "parameters whose name matches |"
)


def key_rows(section: str, kind: type) -> list[str]:
    """A row for each key: how it is written, its default, its meaning."""
    comments, default = dict(COMMENT.findall(inspect.getsource(kind))), kind()
    rows = []
    for key in (field.name for field in fields(kind) if field.name not in UNWRITTEN):
        name = f"{section}.{key}"
        meaning = SAID.get(name) or escape(comments[key], quote=False)
        rows.append(f"| `{name}` | {shown(getattr(default, key))} | {meaning} |")
    return rows


def shown(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{','.join(map(str, value))}`" if isinstance(value, tuple) else f"`{value}`"


def table(name: str) -> str:
    kinds = {"optimizer": Optimizer, "rate": Rate}
    chosen = {name: kinds[name]} if name in kinds else SECTIONS
    rows = [row for section, kind in chosen.items() for row in key_rows(section, kind)]
    rows += [GROUP] * (name == "optimizer")
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def filled(page: str) -> str:
    """The page with every table of keys written anew."""
    return ASKED.sub(lambda m: f"<!-- keys: {m[1]} -->\n{table(m[1])}\n<!-- end -->", page)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
