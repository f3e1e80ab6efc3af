"""Every command and snippet in the README and the documentation runs, and gives what is shown."""

from __future__ import annotations

import ast
import doctest
import itertools
import json
import shlex
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import stepladder as sl
from stepladder.plan import Layout, Plan, Recipe
from stepladder.plan.refit import spread
from tests import ranks
from tests.soak import soak_after

from .blocks import PAGES, ROOT, Block, Command, blocks, inline_commands, page_name
from .running import (
    Parsed,
    assert_shown,
    check,
    check_other,
    inside,
    rank_of_command,
    rank_of_script,
    run_here,
    run_script,
    small,
    without,
)

# What the launcher says before it starts ranks; cli/test_train_ranks.py reads it there.
NO_LAYOUT = "The plan names no layout: data parallel on 2 ranks, replicate=2.\n"
READERS = {
    "toml": tomllib.loads,
    "json": json.loads,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    "yaml": yaml.safe_load,
}
DONE: dict[str, tuple[int, str]] = {}  # what was run already, on any page
TRAIN = """
import torch
import stepladder as sl

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 10, (512,)))
run = sl.climb(model, loss="cross_entropy", optimizer="adamw lr=3e-3", plan="auto", device="cpu")
with run.batches(data, size=64, seed=0) as batches:
    for report in sl.fit(run, batches, steps=2):
        print(report.step, report.loss)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A reader's folder: a recipe, a script, a model, some text and tokens, two finished runs."""
    made = tmp_path_factory.mktemp("reader")
    (made / "text").mkdir()
    (made / "text" / "words.txt").write_text("every rung leaves the mathematics alone. " * 200)
    (made / "tokens.bin").write_bytes(struct.pack("<4096H", *(n % 256 for n in range(4096))))
    (made / "train.py").write_text(TRAIN)
    (made / "RUN.toml").write_text(
        '[model]\nname = "gpt:layers=2,hidden=16,heads=2,vocab=256"\nsequence = 16\n'
    )
    for page in PAGES:
        for block in blocks(page):
            file = block.language in READERS or block.title.endswith(".py")
            if file and block.title:
                (made / block.title).write_text(block.body)
    with pytest.MonkeyPatch.context() as patch:  # pages show what nobody has measured here
        patch.setenv("XDG_CACHE_HOME", str(made / "cache"))
        for name in ("first", "second"):
            words = small(Parsed.read("stepladder train RUN.toml --plan fp32"), f"runs/{name}")
            assert run_here(words, made)[0] == 0
        yield made


def commands(page: Path) -> list[Command]:
    return [command for block in blocks(page) for command in block.commands()]


def starts_ranks(text: str) -> bool:
    """Whether it is run on the two ranks that are kept for such tests."""
    if text.startswith("torchrun"):
        return "--nnodes" not in text
    return text.startswith("stepladder train") and Parsed.read(text).ranks == 2


def ask(command: Command, folder: Path) -> None:
    """Run a command that needs one process, or read it where it is not for a test to run."""
    text = command.text
    if not text.startswith("stepladder "):
        if text == "python train.py":
            DONE.setdefault(text, run_script("train.py", folder))
        else:
            check_other(text)
        return
    if command.synopsis:
        check_options(text)
        return
    check(text, folder)
    parsed = Parsed.read(text)
    if command.block.needs or parsed.elsewhere:
        return
    assert parsed.ranks == 1, f"{text}: say in the block's title what it needs"
    if text not in DONE:
        DONE[text] = run_here(small(parsed, f"runs/{len(DONE)}"), folder)
    code, output = DONE[text]
    assert code == 0 or command.shown or starter(parsed), f"{text}: exit {code}\n{output}"
    assert_shown(command, output, exact=parsed.computed)


def starter(parsed: Parsed) -> bool:
    """A lab's starter must fail its check."""
    return parsed.words[:1] == ["check"]


def check_options(text: str) -> None:
    """Words in brackets: every option is one of the command's."""
    _, name, *words = shlex.split(text.replace("[", " ").replace("]", " "))
    bare = [word for word in words if not word.startswith("-") and word.islower()]
    parser = Parsed.parser(name)
    for word in words:
        if word.startswith("--") and "." not in word:
            assert word in parser._option_string_actions, f"{name} has no {word}"
    assert all(word.isidentifier() for word in bare)


def single(page: Path) -> list[Command]:
    return [c for c in commands(page) if c.block.needs or c.synopsis or not starts_ranks(c.text)]


def several(page: Path) -> list[Command]:
    return [c for c in commands(page) if c not in single(page)]


# The README first: what a newcomer types is in the gate, every other page in the soak.
WITH_COMMANDS = sorted((p for p in PAGES if single(p)), key=lambda p: p.name != "README.md")


@pytest.mark.parametrize("page", soak_after(WITH_COMMANDS), ids=page_name)
def test_commands_run_and_give_what_is_shown(page: Path, folder: Path) -> None:
    for command in single(page):
        ask(command, folder)


@pytest.mark.soak
@pytest.mark.parametrize("page", [p for p in PAGES if several(p)], ids=page_name)
def test_commands_on_two_ranks_run(page: Path, folder: Path) -> None:
    for command in several(page):
        text = command.text
        if text not in DONE:
            DONE[text] = on_ranks(text, folder, f"runs/ranks-{len(DONE)}")
        code, output = DONE[text]
        assert code == 0, f"{text}: exit {code}\n{output}"
        assert_shown(command, output, exact=False)


def on_ranks(text: str, folder: Path, run: str) -> tuple[int, str]:
    """A command as its ranks see it: what the launcher says is left out, and tested with it."""
    script = shlex.split(text)[-1]
    if script.endswith(".py"):
        path = folder / script if script == "train.py" else ROOT / script
        return ranks.run(rank_of_script, 2, str(path), str(folder), init=False)[0]
    text = text.replace("torchrun --nproc-per-node 2 -m stepladder.cli.main", "stepladder")
    check(text, folder)
    parsed = Parsed.read(text)
    words = without(small(parsed, run), "--ranks", "--restarts")
    said = ""
    if parsed.options.plan and (plan := Plan.parse(parsed.options.plan)).layout == Layout():
        said = NO_LAYOUT
        words[words.index("--plan") + 1] = str(spread(plan, 2))
    code, shown = ranks.run(rank_of_command, 2, words, str(folder), init=False)[0]
    return code, said + shown


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_between_the_words_are_ones(page: Path, folder: Path) -> None:
    for text in inline_commands(page):
        if "[" in text or "|" in text or text.count(" ") == 1 or text.endswith("--ranks"):
            assert text.split()[1] in sl_commands(), text
        else:
            check(text.replace(" N", " 2"), folder)


def sl_commands() -> set[str]:
    from stepladder.cli.main import COMMANDS

    return set(COMMANDS)


def with_language(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(b.language in languages for b in blocks(page))]


def reader(folder: Path) -> dict[str, Any]:
    """What a fragment may take for granted: a model, some data, a run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    small = Fragments()
    return {
        "sl": small,
        "torch": torch,
        "model": model,
        "dataset": rows,
        "loss_fn": torch.nn.functional.cross_entropy,
        "run": small.climb(model, loss="cross_entropy", plan="fp32", device="cpu"),
    }


class Fragments:
    """`stepladder` as a fragment sees it: the same, and runs whose data ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sl, name)

    def fit(self, run: Any, batches: Any, *, steps: int | None = None, **named: Any) -> Any:
        return sl.fit(run, batches, steps=None if isinstance(batches, Few) else steps, **named)

    def climb(self, *given: Any, **named: Any) -> Any:
        return Short(sl.climb(*given, **{"device": "cpu", **named}))


class Short:
    """A run whose data ends: a fragment's loop over batches that a reader would let run on."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def batches(self, source: Any, *, size: int, **how: Any) -> Few:
        return Few(self.run.batches(source, size=min(size, 16), **how))


class Few:
    """The first few of batches that do not end."""

    def __init__(self, batches: Any) -> None:
        self.all = batches

    def __enter__(self) -> Few:
        return self

    def __exit__(self, *failure: object) -> None:
        self.all.close()

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.all, 4)


# What a newcomer pastes first is in the gate; other tests of it run what the other pages show.
FIRST = ("README.md", "index.md", "tutorial.md", "reference.md")
WITH_SNIPPETS = sorted(with_language("python"), key=lambda page: page.name not in FIRST)


@pytest.mark.parametrize("page", soak_after(WITH_SNIPPETS, gate=len(FIRST)), ids=page_name)
def test_snippets_run_from_the_first_to_the_last(page: Path, folder: Path) -> None:
    run_snippets(page, folder, needing={""})


STARTING_RANKS = "needs two ranks"


@pytest.mark.soak
@pytest.mark.parametrize(
    "page",
    [
        p
        for p in PAGES
        if any(b.needs == STARTING_RANKS for b in blocks(p) if b.language == "python")
    ],
    ids=page_name,
)
def test_snippets_that_start_ranks_run_among_the_others(page: Path, folder: Path) -> None:
    run_snippets(page, folder, needing={"", STARTING_RANKS})


def run_snippets(page: Path, folder: Path, needing: set[str]) -> None:
    names = reader(folder)
    with inside(folder):
        for block in blocks(page):
            if block.language == "python" and block.needs in needing:
                run_snippet(block, names)


def run_snippet(block: Block, names: dict[str, Any]) -> None:
    """Run a block; of one with prompts, what it answers must be what is shown."""
    where = f"{block.page.name}:{block.line}"
    if not block.body.startswith(">>> "):
        exec(compile(block.body, where, "exec"), names)
        return
    asked = doctest.DocTestParser().get_doctest(block.body, names, where, where, block.line)
    said: list[str] = []
    result = doctest.DocTestRunner().run(asked, out=said.append)
    assert result.attempted and not result.failed, "".join(said)


@pytest.mark.parametrize("page", with_language("py"), ids=page_name)
def test_code_of_other_projects_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "py":
            ast.parse(block.body)


@pytest.mark.parametrize("page", with_language(*READERS), ids=page_name)
def test_files_are_what_they_say(page: Path) -> None:
    for block in blocks(page):
        if block.language in READERS:
            table = READERS[block.language](block.body)
            if block.language == "toml":
                Recipe.from_table(table)


def test_no_block_is_of_a_language_that_nobody_runs() -> None:
    known = {"", "sh", "bash", "console", "python", "py", "text", *READERS}
    for page in PAGES:
        for block in blocks(page):
            assert block.language in known, f"{page_name(page)}:{block.line}: {block.language}"
