"""What the prose says of an output is what the output beside it says.

A table of claims, each with the output it speaks of; and rules for the words that people use when
they state a result, over every paragraph in front of an output.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .blocks import FENCE, PAGES, ROOT, page_name

CLAIMS = [  # page, the sentence, what the next outputs say, in this order
    ("planner.md", "is followed by what would", r"DOES NOT FIT(.|\n)*What to change", r", fits"),
    ("planner.md", "Then DDP fits.", r", fits", r", fits"),
    ("planner.md", "A micro-batch of one leaves the device underused", r"MFU 41"),
    ("planner.md", '"60 is less than 80, so DDP" is a common mistake', r"537"),
    ("planner.md", "recomputed blocks it fits, up to a micro-batch of four",
     r"micro=4 (.|\n)*, fits", r"micro=8 (.|\n)*DOES NOT FIT"),
    ("planner.md", "with two accumulated micro-batches for a batch of 64",
     r"batch=64 .*accumulate=2"),
    ("planner.md", "What fits with activations:", r"The smallest that does: 5 nodes x 8"),
    ("planner.md", "Forty devices are enough", r"128 nodes x 8"),
    ("interview.md", "The device decides, too:", r"bf16 needs matrix units"),
    ("interview.md", "In this order, because it is the order", r"DOES NOT FIT", r", fits"),
    ("interview.md", "Compute the whole state, not the weights", r"Best: bf16 zero"),
    ("interview.md", "Training takes about 6 FLOPs per parameter and token", r"days"),
    ("planner.md", "memory depends on all parameters", r"46.7 B parameters \(12.9 B active\)"),
]  # fmt: skip
SMALL, LARGER = "layers=32,hidden=2560", "layers=32,hidden=3072"
SHARDED, DDP = 'bf16 zero3 micro=8"', 'bf16 ddp micro=1"'
RATIOS = [  # page, the sentence with its number, the model, the faster and the slower plan there
    ("planner.md", r"That is ([\d.]+) times DDP's speed", SMALL, SHARDED, DDP),
    ("planner.md", r"sharding is ([\d.]+) times as fast\.", SMALL, 'bf16 zero3 micro=1"', DDP),
    ("planner.md", r"and sharding is ([\d.]+) times as fast:", SMALL, SHARDED,
     'bf16 ddp micro=1 batch=64"'),
    ("planner.md", r"That is ([\d.]+) times DDP's speed", LARGER, SHARDED, DDP),
]  # fmt: skip
RULES = [  # words of a paragraph, words that may not stand there, what the output must say, or not
    (r"\bfits\b", r"not|\?|what|until", r", fits|fit\b", r"DOES NOT FIT"),
    (r"does not fit|runs out of memory|too large for", r"\?|unless|if ",
     r"DOES NOT FIT|none of", r", fits"),
    (r"(nothing|no block)\b.{0,30}recomput", r"\?", r"", r"recompute=(blocks|selective|every)"),
]  # fmt: skip


def outputs(page: Path) -> list[tuple[str, str]]:
    """Each block that shows an output, with the paragraph in front of it."""
    text, found, end = page.read_text(), [], 0
    for fence in FENCE.finditer(text):
        before = text[end : fence.start()].strip().rpartition("\n\n")[2]
        end = fence.end()
        if fence["language"] == "console":
            found.append((" ".join(before.split()), fence["body"]))
    return found


@pytest.mark.parametrize(("page", "sentence", "says"), [(p, s, o) for p, s, *o in CLAIMS])
def test_a_claim_is_what_the_outputs_after_it_say(page, sentence, says):
    text = (ROOT / "docs" / page).read_text()
    start = " ".join(text.split()).lower().find(sentence.lower())
    assert start >= 0, f"{page} does not say: {sentence}"
    at = re.search(r"\s+".join(map(re.escape, sentence.split())), text, re.IGNORECASE).start()
    shown = [fence["body"] for fence in FENCE.finditer(text, at) if fence["language"] == "console"]
    assert len(shown) >= len(says)
    for body, pattern in zip(shown, says, strict=False):
        assert re.search(pattern, body), f"{sentence} … {body}"


def rate(text: str, model: str, plan: str) -> float:
    """Tokens a second in the output of a command on a page."""
    command = rf"\$ stepladder plan \S*{model}.*{re.escape(plan)}\n"
    shown = re.search(command + r"[^$`]*?([\d,]+) tokens/s a device", text)
    assert shown, command
    return float(shown[1].replace(",", ""))


@pytest.mark.parametrize(("page", "sentence", "model", "faster", "slower"), RATIOS)
def test_a_ratio_is_that_of_the_outputs(page, sentence, model, faster, slower):
    text = (ROOT / "docs" / page).read_text()
    stated = re.search(sentence, " ".join(text.split()))
    assert stated, sentence
    found = rate(text, model, faster) / rate(text, model, slower)
    assert float(stated[1]) == pytest.approx(found, abs=0.015)


def broken_rules(paragraph: str, output: str) -> list[str]:
    return [
        claim
        for claim, unless, must, must_not in RULES
        if re.search(claim, paragraph, re.IGNORECASE)
        and not re.search(unless, paragraph, re.IGNORECASE)
        and (not re.search(must, output) or re.search(must_not, output))
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_words_before_an_output_agree_with_it(page):
    found = [
        f"{paragraph[-90:]} → {output.splitlines()[0]}"
        for paragraph, output in outputs(page)
        if broken_rules(paragraph, output)
    ]
    assert found == []


def test_a_sentence_that_contradicts_its_output_is_seen():
    assert broken_rules("Now it fits:", "memory 9 of 8 GiB, DOES NOT FIT")
    assert broken_rules("It does not fit on one device:", "memory 7 of 8 GiB, fits")
    assert broken_rules("Here nothing needs to be recomputed:", "Best: bf16 recompute=blocks")
    assert not broken_rules("Now it fits:", "memory 7 of 8 GiB, fits")
