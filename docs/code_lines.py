"""Counts lines of code for the tables that compare them: `python docs/code_lines.py`.

Blank lines, comments, docstrings and imports do not count, here as in the code of other projects,
and a call that the formatter wraps counts once: nobody pays for long names. A page asks for a table
by a comment, and everything up to `<!-- end -->` is written here; a test holds the pages to it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
EVERYDAY = ROOT / "docs" / "everyday.md"
PEERS = ROOT / "benchmarks" / "everyday"
PEER_FILES = {name: f"with_{name.lower()}" for name in ("Lightning", "Accelerate", "Trainer")}
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASKED = re.compile(r"<!-- lines: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}


def count(code: str) -> int:
    """Lines of code that are no import and no docstring; a wrapped line is one."""
    begins, first = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NEWLINE:
            begins.add(first)
            first = 0
        elif token.type not in SILENT and not first:
            first = token.start[0]
    silent = {
        node.lineno
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring(node)
    }
    return len(begins - silent)


def is_docstring(node: ast.AST) -> bool:
    """Whether it is a text that stands alone, which only a docstring does."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def read_example(path: Path) -> str:
    """The code of a script, or of a notebook's cells."""
    if path.suffix == ".py":
        return path.read_text()
    return "\n".join(code_cells(path))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def title(path: Path) -> str:
    """What an example shows: the first line of its docstring, or of the notebook's text."""
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
    first = "".join(json.loads(path.read_text())["cells"][0]["source"])
    return first.splitlines()[2]


def examples() -> str:
    """The table of examples/README.md."""
    lines = ["| example | lines | shows |", "|---|---|---|"]
    for path in sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]):
        lines.append(
            f"| [{path.name}]({path.name}) | {count(read_example(path))} | {title(path)} |"
        )
    return "\n".join(lines)


def our_programs() -> dict[str, str]:
    """The programs of docs/everyday.md by need; what a block before the last sets up is given."""
    _, *parts = EVERYDAY.read_text().split("\n## ")
    return {part.splitlines()[0]: BLOCK.findall(part)[-1] for part in parts}


def peer_programs(peer: str) -> dict[str, str]:
    """The programs of a peer by need, as its file separates them."""
    _, *parts = (PEERS / f"{peer}.py").read_text().split("\n# %% ")
    return {part.splitlines()[0]: part.partition("\n")[2] for part in parts}


def everyday() -> str:
    """The table of docs/everyday.md: lines by need and project, and in how many we are shortest."""
    programs = {"stepladder": our_programs()}
    programs |= {name: peer_programs(file) for name, file in PEER_FILES.items()}
    lines = [f"| need | {' | '.join(programs)} |", "|---" * (len(programs) + 1) + "|"]
    short = 0
    for need in programs["stepladder"]:
        counts = [count(found[need]) if need in found else None for found in programs.values()]
        ours, *theirs = counts
        short += ours <= min(number for number in theirs if number)
        shown = " | ".join("–" if number is None else str(number) for number in counts)
        anchor = re.sub(r"[^a-z0-9 -]", "", need.lower()).replace(" ", "-")
        lines.append(f"| [{need}](#{anchor}) | {shown} |")
    needs = len(programs["stepladder"])
    head = f"In {short} of {needs} needs stepladder takes no more lines than the shortest other. "
    return "\n".join([f"{head}A dash: the project has no way of its own.", "", *lines])


TABLES = {"examples": examples, "everyday": everyday}


def filled(page: str) -> str:
    """The page with every table of lines written anew."""
    return ASKED.sub(lambda m: f"<!-- lines: {m[1]} -->\n{TABLES[m[1]]()}\n<!-- end -->", page)


def main() -> None:
    for path in [EXAMPLES / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if (new := filled(text)) != text:
            path.write_text(new)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
