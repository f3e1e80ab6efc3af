"""The page on speed states what the benchmarks recorded."""

from __future__ import annotations

import json
import re

import pytest

from .blocks import ROOT

PAGE = (ROOT / "docs" / "speed.md").read_text()
ROWS = json.loads((ROOT / "benchmarks" / "results" / "peers_gpu.json").read_text())["rows"]
# Words of a row of the first table: the contest, and which of its contestants.
FINDINGS = {
    "Llama 1B shape, 8": ("llama1b", "bf16-master"),
    "8-bit matmuls": ("fp8", "fp8-master"),
    "GPT 124M": ("gpt", "graphs=on"),
    "ResNet-50": ("resnet", "graphs=on"),
    "LlamaForCausalLM": ("hf", "bf16"),
}


@pytest.mark.parametrize("words", FINDINGS)
def test_a_finding_is_the_ratio_that_was_recorded(words: str) -> None:
    contest, name = FINDINGS[words]
    peer, *ours = [row for row in ROWS if row["contest"] == contest]
    (found,) = [row for row in ours if row["name"].endswith(name) or f" {name} " in row["name"]][
        -1:
    ]
    line = next(line for line in PAGE.splitlines() if line.startswith("|") and words in line)
    speed, memory = re.findall(r"([\d.]+) ×(?= |\*)", line)[-2:]
    assert float(speed) == round(found["per_second"] / peer["per_second"], 3)
    assert float(memory) == round(found["peak_gb"] / peer["peak_gb"], 2)


def test_every_rate_with_a_spread_is_a_recorded_one() -> None:
    recorded = {(f"{row['per_second']:,.0f}", f"{row['spread']:.1%}") for row in ROWS}
    shown = re.findall(r"\| ([\d,]+) ±([\d.]+) %", PAGE)
    assert len(shown) > 15
    assert {(rate, f"{spread}%") for rate, spread in shown} <= recorded
