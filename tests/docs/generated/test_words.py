"""The page of all words and keys has each of them, and only those."""

from __future__ import annotations

import re

from stepladder.plan import Optimizer, Plan, Recipe
from stepladder.plan.plan_text import ALL_WORDS, FIELDS
from tests.docs.blocks import ROOT
from tests.docs.site_scripts import load

PAGE = (ROOT / "docs" / "words.md").read_text()
ROW = re.compile(r"^\| `([^|]+)` \| (.+) \| \[\w+\]\([\w/.]+\) \|$", re.MULTILINE)


BESIDE = {"shard": "zero3", "compress": "ddp"}  # words that do nothing alone, and are refused


def rows() -> dict[str, tuple[str, str]]:
    """Word of a plan: how it is written, and what is said of it."""
    found = ((example.strip("'"), said) for example, said in ROW.findall(PAGE))
    return {re.split(r"[= ]", example)[0]: (example, said) for example, said in found}


def test_every_word_of_a_plan_is_there_and_no_other():
    assert sorted(rows()) == sorted(ALL_WORDS)


def test_every_way_to_write_one_is_read_by_the_parser():
    for word, (example, said) in rows().items():
        quoted = f"'{example}'" if word == "optimizer" else example
        Plan.parse(f"{BESIDE.get(word, '')} {quoted}")
        if word in FIELDS and ": " in said:
            for choice in re.findall(r"`([\w:-]+)`", said.rpartition(": ")[2]):
                Plan.parse(f"{BESIDE.get(word, '')} {word}={choice.replace(':N', ':2')}")


def test_keys_and_defaults_are_those_of_the_recipe():
    assert load("words").filled(PAGE) == PAGE, "run: python docs/words.py"
    keys = re.findall(r"^\| `(\w+)\.(\w+)` \|", PAGE, re.MULTILINE)
    assert len(keys) == len(set(keys)) > 50


def test_what_is_said_of_a_recipe_without_words_is_so():
    recipe = Recipe()
    assert recipe.optimizer_choice() == Optimizer.parse("adamw lr=2e-3 wd=0.1 clip=1")
    rate = recipe.rate_choice()
    assert (rate.kind, rate.warmup, rate.floor) == ("cosine", 20, 0.1)


def test_the_plan_that_is_shown_prints_what_is_shown():
    plan = Plan.parse("bf16 zero3 shard=8 micro=4 recompute=selective")
    assert f"{plan.layout} {plan.precision.work} {plan.recompute}" in PAGE
