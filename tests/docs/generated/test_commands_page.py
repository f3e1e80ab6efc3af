"""The page of all commands has each of them, with the options that its parser takes."""

from __future__ import annotations

import argparse
import re

import pytest

from stepladder.cli.main import COMMANDS
from tests.docs.blocks import ROOT
from tests.docs.site_scripts import load

PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_every_command_has_a_section_and_a_table():
    assert load("commands").named(PAGE) == list(COMMANDS)
    assert set(COMMANDS) <= set(re.findall(r"^## (\w+)$", PAGE, re.MULTILINE))


def test_options_are_those_of_the_parsers():
    assert load("commands").filled(PAGE) == PAGE, "run: python docs/commands.py"


def test_nothing_is_said_of_an_option_that_is_not_there():
    commands = load("commands")
    known = {
        f"{name} {word}"
        for name in COMMANDS
        for action in commands.actions(name)
        for word in (action.option_strings or [action.dest])
    }
    said = {key for key in commands.SAID if " " in key}
    assert said <= known
    assert {key for key in commands.SAID if " " not in key} <= {k.split()[1] for k in known}


def test_a_default_that_the_page_does_not_say_is_noticed():
    commands = load("commands")
    option = argparse.ArgumentParser().add_argument("--steps", default=7, help="steps of a run")
    with pytest.raises(AssertionError, match="--steps: 7 is not said"):
        commands.meaning("bench2", option)


def test_every_table_of_bench_is_explained():
    (choices,) = [a.choices for a in load("commands").actions("bench") if a.dest == "name"]
    section = PAGE.partition("\n## bench\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \| \w", section, re.MULTILINE)) >= set(choices)
