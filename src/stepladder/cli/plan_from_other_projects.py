"""Plans from other projects' configuration files, and what of those files is not in the plan."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepladder.cli.results.tables import table
from stepladder.errors import PlanError, RecordError
from stepladder.plan import Plan
from stepladder.plan.foreign.accelerate import read_accelerate
from stepladder.plan.foreign.conversion import ConvertedPlan
from stepladder.plan.foreign.deepspeed import read_deepspeed

FILE = "deepspeed_config.deepspeed_config_file"  # where an Accelerate file names DeepSpeed's


def configure_foreign(parser: argparse.ArgumentParser) -> None:
    """The options that name such a file."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plan", metavar="TEXT", help="forecast this one: 'bf16 zero3 micro=2'")
    which.add_argument("--from-deepspeed", metavar="DS.json", help="forecast what this asks for")
    which.add_argument("--from-accelerate", metavar="CONFIG.yaml", help="the same of this")


def read_foreign(options: argparse.Namespace) -> ConvertedPlan | None:
    """The plan of the file that was named, if one was."""
    if options.from_deepspeed:
        return deepspeed_file(options.from_deepspeed)
    if options.from_accelerate:
        config = load(options.from_accelerate, yaml_reader(), "YAML")
        carried = read_accelerate(config)
        if any(one.key == FILE for one in carried.unmapped):
            return follow(carried, config["deepspeed_config"]["deepspeed_config_file"])
        return carried
    return None


def deepspeed_file(name: str) -> ConvertedPlan:
    return read_deepspeed(load(name, json_reader, "JSON"))


def follow(outer: ConvertedPlan, name: str) -> ConvertedPlan:
    """The plan of the DeepSpeed file that an Accelerate file names, as its launcher does."""
    inner = deepspeed_file(name)
    if outer.plan != Plan():
        problem = f"the plan is in {name}, and beside it stands '{outer.plan}'"
        raise PlanError(FILE, problem, "Say it in that file.")
    left = [one for one in outer.unmapped if one.key != FILE]
    return ConvertedPlan(inner.plan, inner.rate, (*left, *inner.unmapped))


def json_reader(text: str) -> Any:
    """JSON in which no key is said twice; Python would take the last without a word."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        twice = sorted({key for key in names if names.count(key) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} is said twice")
        return dict(pairs)

    return json.loads(text, object_pairs_hook=table)


def load(name: str, read: Callable[[str], Any], kind: str) -> Any:
    try:
        return read(Path(name).read_text())
    except OSError as refused:
        problem = f"{name} cannot be read ({refused.strerror})"
        raise RecordError("file", problem, "Name another.") from refused
    except (ValueError, RecursionError) as broken:
        where = str(broken).splitlines()[0]
        raise PlanError("file", f"{name} is not {kind}: {where}", "Mend that place.") from broken


def yaml_reader() -> Callable[[str], Any]:
    try:
        import yaml
    except ModuleNotFoundError as missing:
        problem = "reading YAML needs the package pyyaml, which is not installed"
        raise PlanError("from-accelerate", problem, "pip install pyyaml.") from missing

    def read(text: str) -> Any:
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as broken:
            raise ValueError(" ".join(str(broken).split())) from broken

    return read


def show_left(carried: ConvertedPlan) -> None:
    """What the file says that the plan does not."""
    if carried.rate:
        print(f"Learning rate: --rate '{carried.rate}' of a recipe")
    if carried.unmapped:
        rows = [[one.key, one.why, one.words] for one in carried.unmapped]
        table("Not in the plan", ["key", "why", "what to know"], rows)


def left_json(carried: ConvertedPlan) -> dict[str, Any]:
    left = [{"key": one.key, "why": one.why, "words": one.words} for one in carried.unmapped]
    return {"rate": carried.rate, "left": left, "whole": carried.complete}
