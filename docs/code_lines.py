"""Counts lines of code for the tables that compare them: `python docs/code_lines.py`.

A line counts where it holds code. Blank lines, comments, docstrings and imports do not, here as in
the code of other projects; the code is formatted by ruff at 100 columns, so nobody saves a line by
writing a longer one. A page asks for a table by a comment, and everything up to `<!-- end -->` is
written here; a test holds the pages to it.
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
ASKED = re.compile(r"<!-- lines: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
}  # fmt: skip


def count(code: str) -> int:
    """Lines that hold code and are no import and no docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    held = {
        line
        for token in tokens
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring(node):
            held -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


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


TABLES = {"examples": examples}


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
