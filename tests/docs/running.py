"""How a command on a page is run by a test: whole, in small form, on ranks kept for it, or read.

Small form changes sizes and folders and nothing else. What would start several new processes is
run by the test of that command already; here it is read by the same parser, its plan settled on
its ranks, and that test is held to exist.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import resource
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepladder.cli.main import COMMANDS, main, split_settings
from stepladder.labs import all_labs
from stepladder.plan import read_recipe
from stepladder.plan.automatic import written_plan
from stepladder.plan.recipe import is_recipe
from stepladder.plan.refit import spread
from stepladder.plan.settled.settle import broken_rules

from .blocks import ROOT, Command

TINY = {  # a recipe's settings, unless the command says otherwise
    "model.name": "gpt:layers=2,hidden=16,heads=2,vocab=256",
    "model.sequence": "16",
    "train.batch": "16",
    "train.steps": "2",
    "train.report_every": "1",
    "train.evaluate_every": "0",
    "train.evaluate_batches": "1",
    "train.sample": "0",
    "data.source": "text:text",
}
LARGE = ("train.steps",)  # which are never left as large as they stand
ELSEWHERE = {  # started for real, with its processes, by a test of its own: file, words in it
    "verify parity": ("tests/cli/test_verify_parity.py", '["verify", "parity"'),
    "verify resume": ("tests/cli/test_verify_resume.py", '["verify", "resume"'),
    "verify certificate": ("tests/cli/test_verify_certificate.py", '["verify", "certificate"'),
    "bench collectives": (
        "tests/cli/results/bench_tables/test_communication_tables.py",
        '"collectives"',
    ),
    "bench ring": ("tests/cli/results/bench_tables/test_communication_tables.py", '"ring"'),
    "bench dp": ("tests/cli/results/bench_tables/test_communication_tables.py", '"dp"'),
    "bench zero": ("tests/cli/results/bench_tables/test_sharding_tables.py", '"zero"'),
    "bench scaling": ("tests/cli/results/bench_tables/test_sharding_tables.py", '"scaling"'),
    "bench walls": ("tests/cli/results/bench_tables/test_wall_tables.py", '"walls"'),
    "bench pipeline": ("tests/cli/results/bench_tables/test_wall_tables.py", '"pipeline"'),
    "bench learning-rate": ("tests/cli/commands/test_bench.py", '"learning-rate"'),
    "bench compression-curves": ("tests/cli/commands/test_bench.py", '"compression-curves"'),
    "bench matmul": ("tests/cli/commands/test_bench.py", '"matmul"'),
    "bench roofline": ("tests/cli/commands/test_bench.py", '"roofline"'),
    "bench devices": ("tests/cli/results/bench_tables/test_image_tables.py", '"devices"'),
    "plan --page": ("tests/cli/planner_page/test_open_page.py", '["plan", "--page"'),
    "watch": ("tests/cli/commands/test_watch.py", '["watch"'),
    "doctor": ("tests/cli/commands/test_doctor.py", '["doctor"'),
    "calibrate": ("tests/cli/commands/test_calibrate.py", '["calibrate"'),
}


@dataclass(frozen=True)
class Parsed:
    """The words of one `stepladder` command."""

    name: str
    words: list[str]  # after the name
    options: argparse.Namespace
    settings: list[str]

    @classmethod
    def read(cls, text: str) -> Parsed:
        _, name, *words = shlex.split(text)
        parser = cls.parser(name)
        own, settings = split_settings(words)
        assert not settings or parser.get_default("settings"), f"{name} takes no {settings[0]}"
        return cls(name, words, parser.parse_args(own), settings)

    @staticmethod
    def parser(name: str) -> argparse.ArgumentParser:
        assert name in COMMANDS, f"{name} is no command"
        parser = argparse.ArgumentParser(prog=name, allow_abbrev=False, exit_on_error=False)
        importlib.import_module(f"stepladder.cli.commands.{name}").configure(parser)
        return parser

    @property
    def ranks(self) -> int:
        return int(getattr(self.options, "ranks", None) or 1)

    @property
    def recipe(self) -> bool:
        """Whether it trains what a recipe says."""
        return self.name in ("train", "profile") or (self.name, *self.words[:1]) == (
            "verify",
            "precision",
        )

    @property
    def computed(self) -> bool:
        """Whether its answer is arithmetic: the same on every machine, to the last digit."""
        named = getattr(self.options, "device_name", None)
        return self.name == "plan" or (named is not None and named != "here")

    @property
    def elsewhere(self) -> tuple[str, str] | None:
        if self.computed and self.name == "doctor":
            return None
        two = " ".join([self.name, *self.words[:1]])
        return ELSEWHERE.get(two, ELSEWHERE.get(self.name))


def check(text: str, folder: Path) -> None:
    """Read a command as it would be read when it is run: words, recipe, plan on its ranks."""
    parsed = Parsed.read(text)
    options = parsed.options
    if parsed.recipe:
        file = options.model and is_recipe(options.model)
        named = str(folder / options.model) if file else options.model
        assert not file or Path(named).exists(), f"no page has a file {options.model}"
        read_recipe(named, parsed.settings)
    if parsed.name == "lab" and options.name:
        assert options.name in {lab.name for lab in all_labs()}, f"no lab {options.name}"
    for words in plans_of(options):
        plan = written_plan(words)
        machines = int((getattr(options, "nodes", None) or "1").rpartition(":")[2])
        if parsed.ranks > 1:
            plan = spread(plan, parsed.ranks).settle(parsed.ranks * machines)
        assert not broken_rules(plan), broken_rules(plan)
    if parsed.elsewhere:
        file, words = parsed.elsewhere
        assert words in (ROOT / file).read_text(), f"{file} does not run {text}"


def plans_of(options: argparse.Namespace) -> list[str]:
    asked = [getattr(options, name, None) or "" for name in ("plan", "plans", "then")]
    return [words.strip() for text in asked for words in text.split(";") if words.strip()]


def small(parsed: Parsed, folder: str) -> list[str]:
    """The command's words with small sizes and a folder of its own."""
    words = list(parsed.words)
    if parsed.recipe:
        given = {word.removeprefix("--").partition("=")[0] for word in parsed.settings}
        if ".py:" in (parsed.options.model or ""):  # whose file has data of its own
            given.add("data.source")
        for key, value in TINY.items():
            if key not in given and not (parsed.options.model and key.startswith("model.")):
                words += [f"--{key}", value]
            elif key in LARGE:
                words[words.index(f"--{key}") + 1] = value
        if "run.folder" not in given:
            words += ["--run.folder", folder]
    return [parsed.name, *words]


def without(words: list[str], *names: str) -> list[str]:
    """Words less some options and their values."""
    rest, kept = iter(words), []
    for word in rest:
        if word in names:
            next(rest)
        else:
            kept.append(word)
    return kept


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """The folder as the working one, and the process's limits as they were afterwards."""
    before, limit = os.getcwd(), resource.getrlimit(resource.RLIMIT_DATA)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        resource.setrlimit(resource.RLIMIT_DATA, limit)


def run_here(words: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and output of a stepladder command in this process."""
    shown = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main(words)
    return code, shown.getvalue()


def rank_of_command(words: list[str], folder: str) -> tuple[int, str]:
    """One rank of `stepladder train`, as the launcher starts it."""
    return run_here(words, Path(folder))


def rank_of_script(name: str, folder: str) -> tuple[int, str]:
    return run_script(name, Path(folder))


def run_script(name: str, folder: Path) -> tuple[int, str]:
    shown = io.StringIO()
    with inside(folder), contextlib.redirect_stdout(shown):
        runpy.run_path(name, run_name="__main__")
    return 0, shown.getvalue()


def masked(line: str) -> str:
    """A line without what differs from machine to machine."""
    return re.sub(r"[\d.,e+-]*\d[\d.,e+-]*", "#", " ".join(line.split()))


def assert_shown(command: Command, output: str, exact: bool) -> None:
    """Each line under the command must come out of it, in this order."""
    same = (lambda line: line.rstrip()) if exact else masked
    lines = iter([same(line) for line in output.splitlines()])
    for expected in command.shown:
        where = f"{command.block.page.name}:{command.block.line}"
        assert same(expected) in lines, f"{where}: not there, or not in order: {expected}\n{output}"


def check_other(text: str) -> None:
    """A command of another program: what it names exists here."""
    words = [word for word in shlex.split(text) if not re.match(r"[A-Z_]+=", word)]
    program, *rest = words
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), text
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = re.findall(r"stepladder\[(\w+)\]", text)
        assert named and set(named) <= set(extras["optional-dependencies"]), text
    elif program in ("python", "python3"):
        check_python(rest)
    else:
        assert program in ("torchrun", "mkdocs"), f"who runs {text}?"


def check_python(words: list[str]) -> None:
    if words[:2] == ["-m", "pytest"]:
        for path in words[2:]:
            assert (ROOT / path).exists(), path
    elif words[0] == "-m":
        assert (ROOT / f"{words[1].replace('.', '/')}.py").exists(), words[1]
    else:
        path = ROOT / words[0]
        assert path.exists(), path
        for option in (word for word in words[1:] if word.startswith("--")):
            assert f'"{option}"' in path.read_text(), f"{words[0]} has no {option}"
