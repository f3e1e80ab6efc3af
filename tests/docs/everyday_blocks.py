"""The blocks of docs/everyday.md: what is given, what a need sets up, and its program."""

from __future__ import annotations

from .site_scripts import load

code_lines = load("code_lines")
PAGE = code_lines.EVERYDAY


def given() -> str:
    """What the page says that every program takes for granted."""
    return str(code_lines.BLOCK.findall(PAGE.read_text())[0])


def setting_up(need: str) -> list[str]:
    """Blocks of a need before its program; LoRA adapts the model of the need before it."""
    _, *parts = PAGE.read_text().split("\n## ")
    wanted = (need, "Fine-tune a Hugging Face model") if need == "LoRA" else (need,)
    found = [code_lines.BLOCK.findall(p)[:-1] for p in parts if p.splitlines()[0] in wanted]
    return [block for blocks in found for block in blocks]
