"""The fenced blocks, commands and links of every page: what the tests of the documentation run.

A block's title says what it needs that a test has not: ```sh title="needs a GPU". Such a block is
read by its command's own parser and not run. Titles that name a file are files for the commands of
the page.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
SHELLS = ("", "sh", "bash", "console")
PROGRAMS = r"(?:[A-Z_]+=\S+ )*(?:stepladder|python3?|torchrun|make|pip|mkdocs|cd|git|\./\S+)\b"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    title: str
    body: str

    @property
    def needs(self) -> str:
        """What it needs that a test has not; empty: nothing."""
        return self.title if self.title.startswith("needs ") else ""

    def commands(self) -> list[Command]:
        """Its commands, each with the lines shown under it."""
        if self.language not in SHELLS:
            return []
        found: list[Command] = []
        lines = re.sub(r"\\\n\s*", "", self.body).splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        for line in lines:
            words = line.removeprefix("$ ") if prompted else line
            typed = line.startswith("$ ") if prompted else re.match(PROGRAMS, line)
            if typed:
                found.append(Command(self, re.split(r"  #| \|\| ", words)[0].strip(), []))
            elif prompted and found and line.strip():
                found[-1].shown.append(line)
            elif self.language in ("sh", "bash") and line.strip():
                raise ValueError(f"{self.page.name}:{self.line}: what is this? {line}")
        return found


@dataclass(frozen=True)
class Command:
    block: Block
    text: str
    shown: list[str]  # lines that must come out of it, in this order

    @property
    def synopsis(self) -> bool:
        """Whether it only says which words there are."""
        return bool(re.search(r"\[|…|\bN\b|\bFILE\b", self.text))


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        title = re.search(r'title="([^"]*)"', fence["info"])
        body = textwrap.dedent(fence["body"])
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(page, line, fence["language"], title[1] if title else "", body))
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def inline_commands(page: Path) -> list[str]:
    """`stepladder …` between the words and in tables."""
    found = re.findall(r"`(stepladder [^`\n]+)`", prose(page))
    return [re.sub(r"\\\|", "|", words) for words in found]
