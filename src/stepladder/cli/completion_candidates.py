"""How a command that is being typed may go on: what the shells' completion asks for.

Everything is read off what the commands themselves read: their parsers, the recipe's sections, the
plan's words, the tables of devices and presets, the labs. Nothing here imports torch, so an answer
takes as long as Python takes to start.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from stepladder.hardware.device_table import DEVICES
from stepladder.labs import all_labs
from stepladder.labs.course.syllabus import all_units
from stepladder.plan import AXES, PRECISIONS, Optimizer, Rate
from stepladder.plan.learning_rate import KINDS as RATES
from stepladder.plan.optimizer import MOMENTS as OPTIMIZERS
from stepladder.plan.plan_text import ALL_WORDS as PLAN_WORDS
from stepladder.plan.plan_text import (
    ATTENTIONS,
    BATCHNORMS,
    COMPILES,
    KERNELS,
    OFFLOADS,
    SWITCH,
    UPDATES,
)
from stepladder.plan.plan_text import KEYS as PLAN_KEYS
from stepladder.plan.recipe import NONFINITE, SECTIONS, SPIKE
from stepladder.plan.shared_constants import MASTER_STATE
from stepladder.workload.presets import PRESETS

from .main import COMMANDS, split_settings

# The built-in models that are no shapes. Their table needs torch; a test holds the two together.
OTHERS = ("mlp-tiny", "resnet-tiny", "resnet18", "resnet50", "vit-tiny", "vit-small", "vit-base")
TRUTH, PLACES = ("true", "false"), ("auto", "cpu", "cuda")
PLAN_VALUES: dict[str, Iterable[str]] = {
    "precision": PRECISIONS,
    "prefetch": ("0", "1", "2"),
    "gathered": ("2", "4", "8"),
    "recompute": ("none", "blocks", "selective", "every:2"),
    "offload": ("none", *OFFLOADS),
    "compress": ("none", "bf16", "fp16", "powersgd:4"),
    "schedule": ("gpipe", "1f1b", "interleaved:2", "zero-bubble"),
    "compile": COMPILES,
    "kernels": (*SWITCH, *KERNELS),
    "graphs": SWITCH,
    "attention": ATTENTIONS,
    "batchnorm": BATCHNORMS,
    "exact": ("none", "free", "runs", "ranks"),
    "recheck": ("none", "1000"),
    "update": UPDATES,
    "state": tuple(map(str, MASTER_STATE)),
    "optimizer": OPTIMIZERS,
    **dict.fromkeys(AXES, ("2", "4", "8", "-1")),
}
SETTING_VALUES: dict[str, Iterable[str]] = {
    "model.name": (*PRESETS, *OTHERS),
    "data.workers": ("auto", "0"),
    "train.device": PLACES,
    "train.nonfinite": NONFINITE,
    "train.spike": SPIKE,
    "train.scale_rate": ("none", "linear", "sqrt"),
    "optimizer.name": OPTIMIZERS,
    "rate.kind": RATES,
    "run.track": ("tensorboard", "wandb", "mlflow", "prometheus:9400"),
    **{f"plan.{key}": values for key, values in PLAN_VALUES.items()},
}
PATHS = re.compile(r"(FILE|DIR|RUN|PATH|OUT|PNG|.*\.(json|yaml))\b.*")  # what is shown for one


@dataclass(frozen=True, slots=True)
class Typed:
    """A line up to the cursor."""

    words: tuple[str, ...]  # whole ones, after the program's name
    last: str  # the one at the cursor, without its quotes
    quote: str  # that is open

    @classmethod
    def read(cls, line: str) -> Typed | None:
        for quote in ("", '"', "'"):
            try:
                words = shlex.split(line + quote)
            except ValueError:  # that one is not the quote that is open
                continue
            if not quote and (not line or line[-1].isspace()):
                words.append("")
            return cls(tuple(words[1:-1]), words[-1] if len(words) > 1 else "", quote)
        return None


@dataclass(frozen=True, slots=True)
class Candidate:
    text: str  # the whole word
    about: str = ""  # a sentence on it


def candidates(typed: Typed) -> list[Candidate]:
    """Every word that may stand where the cursor is, given the letters that are there."""
    found = of_command(typed) if typed.words else of_program()
    return [one for one in found if one.text.startswith(typed.last)]


def of_program() -> list[Candidate]:
    options = [Candidate("--help"), Candidate("--version")]
    return [*(Candidate(name, sentence) for name, sentence in COMMANDS.items()), *options]


def of_command(typed: Typed) -> list[Candidate]:
    name, *before = typed.words
    if name not in COMMANDS:
        return []
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    importlib.import_module(f"stepladder.cli.commands.{name}").configure(parser)
    last = typed.last
    flag, equals, value = last.partition("=")
    if equals and flag.startswith("--"):
        return [Candidate(f"{flag}={one.text}") for one in of_flag(parser, flag, value)]
    if before and takes_value(parser, before[-1]):
        return of_flag(parser, before[-1], last)
    if last.startswith("-"):
        return of_options(parser, last)
    action = next_positional(parser, before)
    return of_action(action, last) if action else of_options(parser, last)


def takes_value(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether the word after this one is its value."""
    if is_setting(parser, word):
        return "=" not in word
    action = parser._option_string_actions.get(word)
    return action is not None and action.nargs != 0


def is_setting(parser: argparse.ArgumentParser, word: str) -> bool:
    """Whether this is `--section.key`, of a command that reads a recipe."""
    return bool(parser.get_default("settings")) and word.startswith("--") and "." in word


def of_flag(parser: argparse.ArgumentParser, flag: str, value: str) -> list[Candidate]:
    """What the value of an option may be."""
    if is_setting(parser, flag):
        return of_setting(flag.removeprefix("--"), value)
    action = parser._option_string_actions.get(flag)
    return of_action(action, value) if action else []


def of_options(parser: argparse.ArgumentParser, last: str) -> list[Candidate]:
    """The options; those of the recipe by section first, then by key."""
    own = [
        Candidate(word, (action.help or "").replace("%%", "%"))
        for action in parser._actions
        for word in action.option_strings
        if word.startswith("--")
    ]
    if not parser.get_default("settings"):
        return own
    keys = setting_keys()
    if "." in last:
        return [Candidate(f"--{key}") for key in keys]
    sections = dict.fromkeys(key.partition(".")[0] for key in keys)
    return own + [Candidate(f"--{name}.", f"the recipe's {name}") for name in sections]


def setting_keys() -> list[str]:
    known = {name: [f.name for f in fields(choice)] for name, choice in SECTIONS.items()}
    known["plan"] = list(PLAN_KEYS)
    known["optimizer"] = [f.name for f in fields(Optimizer)]
    known["rate"] = [f.name for f in fields(Rate)]
    return [f"{section}.{key}" for section, keys in known.items() for key in keys]


def of_setting(key: str, value: str) -> list[Candidate]:
    section, _, name = key.partition(".")
    if key in SETTING_VALUES:
        return [Candidate(one) for one in SETTING_VALUES[key]]
    if key in ("data.source", "run.folder"):
        words = ("python", "digits") if name == "source" else ()
        return [*map(Candidate, words), *paths(value)]
    choice = SECTIONS.get(section)
    default = getattr(choice(), name, None) if choice else None
    return [Candidate(one) for one in TRUTH] if isinstance(default, bool) else []


def next_positional(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Action | None:
    """Whose turn it is among those that have no name."""
    own, _ = split_settings(words)
    given = [
        word
        for before, word in zip(["", *own], own)
        if not word.startswith("-") and not (before and takes_value(parser, before))
    ]
    places = [action for action in parser._actions if not action.option_strings]
    if len(given) < len(places):
        return places[len(given)]
    return places[-1] if places and places[-1].nargs in ("*", "+") else None


def of_action(action: argparse.Action, value: str) -> list[Candidate]:
    if action.choices:
        return [Candidate(str(choice)) for choice in action.choices]
    shown = str(action.metavar or action.dest.upper())
    if action.dest in READERS:
        return READERS[action.dest](value)
    if PATHS.fullmatch(shown) or action.type is Path:
        return paths(value)
    return [Candidate(one) for one in PRECISIONS] if shown == "PRECISION" else []


def plan_words(value: str) -> list[Candidate]:
    """The next word of a plan; several plans are told apart by semicolons."""
    before, last = cut(value, r"[\s;]")
    key, equals, _ = last.partition("=")
    if equals:
        return [Candidate(f"{before}{key}={one}") for one in PLAN_VALUES.get(key, ())]
    words = [f"{word}=" if word in PLAN_KEYS else word for word in PLAN_WORDS]
    return [Candidate(f"{before}{word}") for word in words]


def devices(value: str) -> list[Candidate]:
    """The device of a cluster such as `8 nodes x 8 H100-80GB`."""
    before, _ = cut(value, r"\s")
    return [Candidate(f"{before}{name}") for name in DEVICES]


def models(value: str) -> list[Candidate]:
    return [*map(Candidate, (*PRESETS, *OTHERS)), *paths(value)]


def labs(value: str) -> list[Candidate]:
    return [Candidate(lab.name, lab.title) for lab in all_labs()]


def units(value: str) -> list[Candidate]:
    return [Candidate("next"), *(Candidate(unit.name, unit.title) for unit in all_units())]


def optimizers(value: str) -> list[Candidate]:
    return [Candidate(name) for name in OPTIMIZERS]


def places(value: str) -> list[Candidate]:
    return [Candidate(place) for place in PLACES]


READERS: dict[str, Callable[[str], list[Candidate]]] = {  # by what the parser calls it
    "plan": plan_words,
    "plans": plan_words,
    "then": plan_words,
    "on": devices,
    "model": models,
    "name": labs,
    "unit": units,
    "optimizer": optimizers,
    "device": places,
    "device_name": devices,
}


def cut(value: str, joint: str) -> tuple[str, str]:
    """A text in front of its last word, and that word."""
    last = re.split(joint, value)[-1]
    return value[: len(value) - len(last)], last


def paths(value: str) -> list[Candidate]:
    """Files and folders that begin so."""
    folder, slash, start = value.rpartition("/")
    try:
        entries = sorted(Path(f"{folder}{slash}" or ".").expanduser().iterdir())
    except OSError:
        return []
    return [
        Candidate(f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}")
        for entry in entries
        if entry.name.startswith(start) and (start or not entry.name.startswith("."))
    ]
