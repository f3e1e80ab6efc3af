"""A recipe: everything `RUN.toml` says about a run, and the `--section.key value` overrides.

Every key has a default, so an empty file trains the built-in model on the built-in text. The
`plan`, `optimizer` and `rate` sections hold the same words as their shorthands.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepladder.errors import PlanError, nearest, raise_all, require_type

from .learning_rate import Rate
from .optimizer import Optimizer
from .plan import Plan
from .typed_values import convert, toml_value, whole, word_of


@dataclass(frozen=True, slots=True)
class ModelChoice:
    name: str = "gpt-tiny"  # a preset, a shape, a folder with a config, or file.py:make
    sequence: int = 128  # tokens of one sample
    dropout: float = 0.0
    weights: str = ""  # safetensors to start from, or random; empty: those in the model's folder
    lora: str = ""  # such as "r=8 alpha=16 matrices=q_proj base=nf4": train only what this adds


@dataclass(frozen=True, slots=True)
class DataChoice:
    source: str = "python"  # digits, a folder, files, chat.jsonl, file.py:data; "0.7: a, 0.3: b"
    seed: int = 0
    workers: str = "auto"
    packed: bool = False  # documents side by side that do not see each other
    lengths: str = ""  # such as "64@0,128@100": shorter windows first
    longest: int = 0  # refuse samples beyond this many tokens; 0: no limit
    vocabulary: int = 0  # of a token file; 0: the model's
    tokenizer: str = ""  # of text: a tokenizer.json or its folder, or bytes; empty: the model's
    dtype: str = ""  # of raw token files; empty: uint16
    column: str = ""  # of tables; empty: input_ids or tokens, else text
    document_end: int = -1  # the id that ends a document of raw token files, which packs them
    faults: str = "retry:2 then stop"  # or "retry:2 then skip": what cannot be read is left out
    sample: str = ""  # such as file.py:batch: one batch, whose rows are then the data


@dataclass(frozen=True, slots=True)
class TrainChoice:
    steps: int = 500
    batch: int = 16  # samples of one optimizer step
    seed: int = 0
    device: str = "auto"
    loss: str = ""  # cross_entropy, squared_error, own (the module's), or file.py:loss
    beta: float = 0.1  # of pairs of answers: how strongly the reference model holds the tuned one
    nonfinite: str = "stop"  # stop, skip or backoff: of a loss or gradient that is not finite
    spike: str = "report"  # report, rewind, stop or off: of a loss that jumps
    rewinds: int = 3  # times a run may go back because of a spike
    check_copies_every: int = 0  # steps between comparisons of copies; 0: before each save only
    exact: bool = False  # only deterministic algorithms
    report_every: int = 10
    profile_every: int = 0  # steps between one under the profiler, for watch; 0: none
    evaluate_every: int = 100
    evaluate_batches: int = 8
    save_every: int = 0  # 0: at the end only
    scale_rate: str = "none"  # none, linear or sqrt in batch / reference_batch
    reference_batch: int = 0
    sample: int = 200  # bytes of text to sample at the end; 0: none


@dataclass(frozen=True, slots=True)
class RunChoice:
    folder: str = ""  # empty: runs/<date and time>
    resume: bool = False
    timeout_seconds: int = 600  # ranks wait so long for each other before the missing one is named
    track: str = ""  # such as "tensorboard, wandb, mlflow, prometheus:9400"
    export: str = ""  # a folder to write at the end, which from_pretrained reads, adapters merged
    export_adapter: str = ""  # a folder to write at the end, which peft reads
    grace_seconds: int = 30  # from a scheduler's signal to the end, the last save included


SECTIONS = {"model": ModelChoice, "data": DataChoice, "train": TrainChoice, "run": RunChoice}
TEXTS = ("plan", "optimizer", "rate")  # sections that are read by their own words
NONFINITE = ("stop", "skip", "backoff")
SPIKE = ("report", "rewind", "stop", "off")
LEAST = {
    "model.sequence": 1,
    "data.longest": 0,
    "data.vocabulary": 0,
    "data.document_end": -1,
    "train.steps": 1,
    "train.batch": 1,
    "train.report_every": 1,
    "train.profile_every": 0,
    "train.evaluate_every": 0,
    "train.evaluate_batches": 1,
    "train.save_every": 0,
    "train.reference_batch": 0,
    "train.sample": 0,
    "train.rewinds": 0,
    "train.check_copies_every": 0,
    "run.timeout_seconds": 1,
    "run.grace_seconds": 1,
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A run file: model, data, plan, optimizer, schedule and where it all goes."""

    model: ModelChoice = ModelChoice()
    data: DataChoice = DataChoice()
    train: TrainChoice = TrainChoice()
    run: RunChoice = RunChoice()
    plan: Mapping[str, Any] = field(default_factory=dict)  # the plan's words; none: auto
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    rate: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Recipe:
        """A recipe from sections of keys; every unknown or ill-typed one is reported."""
        problems: list[PlanError] = []
        sections: dict[str, Any] = {}
        for name, given in table.items():
            if name not in (*SECTIONS, *TEXTS):
                problems.append(
                    PlanError(name, "is not a section", nearest(name, [*SECTIONS, *TEXTS]))
                )
            elif not isinstance(given, Mapping):
                problems.append(PlanError(name, "is a section, not a value", f"Write [{name}]."))
            elif name in SECTIONS:
                sections[name] = read_section(name, given, problems)
            else:
                sections[name] = dict(given)
        recipe = cls(**sections)
        raise_all([*problems, *recipe.problems()])
        return recipe

    def problems(self) -> list[PlanError]:
        """What is wrong with the texts and the numbers."""
        problems: list[PlanError] = []
        for read in (self.optimizer_choice, self.rate_choice, self.plan_choice):
            try:
                read()
            except PlanError as problem:
                problems += getattr(problem, "problems", [problem])
        return [*problems, *self.too_few(), *self.unknown_policies()]

    def unknown_policies(self) -> list[PlanError]:
        found = [
            PlanError(f"train.{key}", f"'{given}' is not a policy", nearest(given, known))
            for key, known in (("nonfinite", NONFINITE), ("spike", SPIKE))
            if (given := getattr(self.train, key)) not in known
        ]
        if self.train.spike == "rewind" and not self.train.save_every:
            problem = "rewind goes back to a checkpoint, and train.save_every=0 saves none"
            found.append(PlanError("train.spike", problem, "Set train.save_every, such as 100."))
        return found

    def too_few(self) -> list[PlanError]:
        found: list[PlanError] = []
        for name, least in LEAST.items():
            section, _, key = name.partition(".")
            value = getattr(getattr(self, section), key)
            if value < least:
                found.append(PlanError(name, f"{value} is too few", f"Use {least} or more."))
        if not 0 <= self.model.dropout < 1:
            problem = f"{self.model.dropout} is not a share of the activations"
            found.append(PlanError("model.dropout", problem, "Use 0 or more and under 1."))
        if self.train.beta <= 0:
            problem = f"{self.train.beta} holds nothing to the reference model"
            found.append(PlanError("train.beta", problem, "Use such as 0.1."))
        return found

    def plan_choice(self) -> Plan | None:
        """The plan these words name, or None where it is left to be chosen."""
        return Plan.from_table(self.plan) if self.plan else None

    def optimizer_choice(self) -> Optimizer:
        name = word_of(self.optimizer.get("name", "adamw"))
        rate = "adamw_lr" if name == "muon" else "lr"  # the same for what AdamW updates
        words = {rate: 2e-3, "wd": 0.1, "clip": 1.0, **self.optimizer, "name": name}
        start = Optimizer.parse(words.pop("name"))
        groups = words.pop("group", [])
        rules = groups if isinstance(groups, list) else [groups]
        pairs = [*words.items(), *(("group", rule) for rule in rules)]
        return start.change(f"{key}={word_of(value)}" for key, value in pairs)

    def rate_choice(self) -> Rate:
        steps = max(self.train.steps, 1)
        words = {"kind": "cosine", "warmup": min(20, steps // 10), "floor": 0.1, **self.rate}
        warmup = whole(word_of(words["warmup"])) or 0
        words.setdefault("steps", max(steps, warmup + 1))  # a run shorter than its warm-up is legal
        kind = word_of(words.pop("kind"))
        return Rate.parse(" ".join([kind, *(f"{key}={word_of(v)}" for key, v in words.items())]))

    def to_toml(self) -> str:
        """The recipe with every value spelled out, as it is kept beside the run."""
        lines: list[str] = []
        for name, values in asdict(self).items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
            lines.append("")
        return "\n".join(lines)


def read_section(name: str, given: Mapping[str, Any], problems: list[PlanError]) -> Any:
    """One section's values, each of its field's type."""
    default = SECTIONS[name]()
    known = {f.name: type(getattr(default, f.name)) for f in fields(default)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known:
            problems.append(
                PlanError(f"{name}.{key}", "is not a setting", nearest(key, list(known)))
            )
            continue
        try:
            values[key] = convert(value, known[key])
        except ValueError:
            kind = {int: "a whole number", float: "a number", bool: "true or false"}
            problems.append(
                PlanError(
                    f"{name}.{key}",
                    f"'{word_of(value)}' is not {kind.get(known[key], 'text')}",
                    f"The default is {getattr(default, key)!r}.",
                )
            )
    return replace(default, **values)


def read_recipe(what: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a file, of a model's name, or the default, with `--section.key value` words."""
    require_type("recipe", what, (str, Path, type(None)), "Name a RUN.toml or a model.")
    return override(recipe_table(what), overrides)


def recipe_table(what: str | Path | None) -> dict[str, Any]:
    if what is None:
        return {}
    return read_toml(Path(what)) if is_recipe(what) else {"model": {"name": str(what)}}


def is_recipe(what: str | Path) -> bool:
    """Whether this is a run file, and not the name of a model."""
    path = Path(what)
    named = isinstance(what, Path) or path.suffix == ".toml"
    return named or (path.is_file() and path.suffix != ".json")


def override(table: dict[str, Any], overrides: Iterable[str]) -> Recipe:
    """The recipe of a table, with `--section.key value` overrides applied."""
    for section, key, value in pairs(overrides):
        if not isinstance(table.setdefault(section, {}), dict):
            raise PlanError(section, "is a section, not a value", f"Write [{section}].")
        table[section][key] = value
    return Recipe.from_table(table)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as missing:
        hidden = isinstance(missing, PermissionError)
        remedy = "Have its owner allow it." if hidden else "Check its name."
        raise PlanError(
            "run file", f"{path} cannot be read ({missing.strerror})", remedy
        ) from missing
    except (ValueError, RecursionError) as broken:
        raise PlanError("run file", f"{path} is not TOML: {broken}", "Mend that line.") from broken


def pairs(words: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    """(section, key, value) from `--section.key value` or `--section.key=value`."""
    require_type("settings", words, (list, tuple), "Give a list: ['--train.steps', '50'].")
    rest = [str(word) for word in words]
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        section, dot, key = name.partition(".")
        if not word.startswith("--") or not dot or not key:
            known = ", ".join(f"--{name}.KEY" for name in (*SECTIONS, *TEXTS))
            raise PlanError("option", f"'{word}' is not one", f"Write {known} and a value.")
        if not equals:
            if not rest:
                raise PlanError(name, "has no value", f"Write --{name} VALUE.")
            value = rest.pop(0)
        yield section, key, value
