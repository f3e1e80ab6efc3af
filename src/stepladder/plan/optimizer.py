"""The optimizer of a plan: its name and hyperparameters, as the planner and the run read them.

Text form: `adamw lr=3e-4 wd=0.1 betas=0.9,0.95 clip=1`. Groups are rules over parameter names,
first match wins: `group=*.bias:wd=0`, `layers=0.8` shrinks the rate by that factor per block from
the top down. `python:RMSprop lr=1e-3 state=1` stands for an optimizer that is given as code.
`muon lr=0.02 adamw_lr=3e-4` orthogonalises the updates of hidden matrices and has AdamW update the
rest; `group=*.router.weight:by=adamw` says otherwise of some.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from stepladder.errors import PlanError

from .typed_values import nearest_word, real, whole, writable

# Tensors of state per parameter, in the stored type: what each algorithm remembers.
MOMENTS = {"sgd": 0, "momentum": 1, "adamw": 2, "adam": 2, "adafactor": 0, "muon": 2}
# Settings that not every algorithm has, and whose they are.
OWN = {
    "momentum": ("sgd", "muon"),
    **dict.fromkeys(("betas", "eps"), ("adam", "adamw", "muon")),
    **dict.fromkeys(("adamw_lr", "nesterov", "ns_steps", "adjust", "variant"), ("muon",)),
}
CHOICES = {  # settings that are words
    "nesterov": ("on", "off"),
    "adjust": ("original", "match_rms_adamw"),
    "variant": ("muon", "normuon"),
}
MOST_NS_STEPS = 99  # as many as torch.optim.Muon takes
PYTHON = "python:"  # before the class of an optimizer that is given as code
# What torch and others call the settings.
ELSEWHERE = {
    **dict.fromkeys(("weight_decay", "decay", "l2"), "wd"),
    **dict.fromkeys(("learning_rate", "rate", "eta"), "lr"),
    **dict.fromkeys(("beta1", "beta2", "beta", "beta_1", "beta_2"), "betas"),
    "epsilon": "eps",
    **dict.fromkeys(("max_norm", "max_grad_norm", "grad_clip", "gradient_clip_val"), "clip"),
}
OF_CODE = ("lr", "clip", "state")  # what words say of such a one; the rest is set in the code


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter group: other hyperparameters for parameters whose name matches a pattern."""

    pattern: str  # a shell pattern over the parameter's full name
    lr_factor: float = 1.0
    wd: float | None = None  # None leaves the optimizer's
    by: str = ""  # with muon: "muon" or "adamw" updates them; empty: as their shape and place say

    def __str__(self) -> str:
        rate = [] if self.lr_factor == 1.0 else [f"lr=x{self.lr_factor!r}"]
        decay = [] if self.wd is None else [f"wd={self.wd!r}"]
        by = [f"by={self.by}"] if self.by else []
        return f"group={self.pattern}:{','.join([*rate, *decay, *by])}"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer in words: its name, learning rate, and the settings that differ from usual."""

    name: str = "adamw"
    lr: float = 3e-4
    wd: float = 0.0  # decoupled weight decay
    betas: tuple[float, float] = (0.9, 0.95)  # memory of the mean and of the square
    eps: float = 1e-8
    momentum: float = 0.0  # of plain SGD, and of matrices under muon
    clip: float | None = None  # largest global gradient norm; None leaves gradients alone
    layers: float = 1.0  # rate of each block relative to the one after it
    state: int = 0  # of code: tensors it keeps for a parameter, each as large as the parameter
    groups: tuple[Group, ...] = ()
    adamw_lr: float = 3e-4  # with muon: of what AdamW updates
    nesterov: str = "on"  # or off: whether a step looks ahead along the momentum
    ns_steps: int = 5  # Newton-Schulz iterations
    adjust: str = "original"  # or match_rms_adamw: how the rate follows from a matrix's shape
    variant: str = "muon"  # "normuon" divides each row of an update by its mean size

    @property
    def is_code(self) -> bool:
        """Whether it is given as an object, a class or a function, of which words only tell."""
        return self.name.startswith(PYTHON)

    @property
    def moments(self) -> int:
        """State tensors per parameter, each as large as the parameter."""
        if self.is_code:
            return self.state
        return 1 if self.name == "sgd" and self.momentum else MOMENTS[self.name]

    @property
    def matrix_moments(self) -> int:
        """The same for hidden matrices; where AdamW updates some of them too, as for those."""
        alone = self.name == "muon" and all(group.by != "adamw" for group in self.groups)
        return 1 if alone else self.moments

    @property
    def keeps_row_means(self) -> bool:
        """Whether it remembers a number for each row of a matrix, in float32."""
        return self.variant == "normuon"

    @classmethod
    def parse(cls, text: str) -> Optimizer:
        name, *words = text.split() or [""]
        if name not in MOMENTS and not name.startswith(PYTHON):
            remedy = nearest_word(name, MOMENTS, {})
            raise PlanError("optimizer", f"'{name}' is not an optimizer", remedy)
        start = cls(name="sgd", momentum=0.9) if name == "momentum" else cls.usual(name)
        return start.change(words)

    @classmethod
    def usual(cls, name: str) -> Optimizer:
        """What the name alone stands for."""
        return cls(name, lr=0.02, momentum=0.95) if name == "muon" else cls(name)

    def change(self, words: Iterable[str]) -> Optimizer:
        """The same optimizer with `key=value` words applied."""
        changed = self
        for word in words:
            key, _, value = word.partition("=")
            changed = changed._set(key, value)
        return changed

    def _set(self, key: str, value: str) -> Optimizer:
        known = [f.name for f in fields(self) if f.name not in ("name", "groups", "state")]
        if self.is_code and key not in OF_CODE:
            problem = f"{self.name} is code, and '{key}' is set there"
            raise PlanError("optimizer", problem, f"Words say only {', '.join(OF_CODE)} of it.")
        if key == "state" and self.is_code:
            return replace(self, state=round(parse_number(key, value)))
        if key == "group":
            return self._with_group(parse_group(value))
        if key not in known:
            remedy = nearest_word(key, [*known, "group"], ELSEWHERE)
            raise PlanError("optimizer", f"'{key}' is not a setting", remedy)
        if self.name not in OWN.get(key, (self.name,)):
            problem = f"{self.name} does not read it"
            *others, last = OWN[key]
            remedy = f"It is a setting of {' and '.join(filter(None, [', '.join(others), last]))}."
            raise PlanError(f"optimizer.{key}", problem, remedy)
        if key == "betas":
            first, _, second = value.partition(",")
            betas = (parse_number(key, first), parse_number(key, second))
            if max(betas) >= 1:
                raise PlanError("optimizer.betas", f"{value} must be under 1", "Try 0.9,0.95.")
            return replace(self, betas=betas)
        if key == "clip" and value == "none":
            return replace(self, clip=None)
        number: Any = parse_word(key, value) if key in CHOICES else parse_number(key, value)
        if key == "ns_steps":
            number = parse_steps(value)
        if key == "momentum" and self.name == "muon" and number >= 1:
            raise PlanError("optimizer.momentum", f"{value} must be under 1", "Try 0.95.")
        return replace(self, **{key: number})

    def _with_group(self, group: Group) -> Optimizer:
        if group.by and self.name != "muon":
            problem = f"'by={group.by}' chooses between muon and adamw, and {self.name} updates all"
            raise PlanError("optimizer.group", problem, "Leave by= out, or use muon.")
        return replace(self, groups=(*self.groups, group))

    def __str__(self) -> str:
        defaults = Optimizer.usual(self.name)
        words = [self.name]
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name not in ("name", "groups") and value != getattr(defaults, f.name):
                text = ",".join(map(repr, value)) if f.name == "betas" else repr(value).strip("'")
                words.append(f"{f.name}={text}".replace("=None", "=none"))
        return " ".join([*words, *map(str, self.groups)])


def parse_group(text: str) -> Group:
    pattern, colon, settings = text.partition(":")
    if pattern.split() != [pattern] or not writable(pattern):
        raise PlanError(
            "optimizer.group",
            f"{pattern!r} is not a pattern of parameter names",
            "Write group=PATTERN:wd=0, the pattern without spaces.",
        )
    if not colon:
        problem = f"'{text}' sets nothing for the parameters it matches"
        raise PlanError("optimizer.group", problem, f"Write group={text}:wd=0 or :lr=x0.1.")
    group = Group(pattern)
    for word in filter(None, settings.split(",")):
        key, _, value = word.partition("=")
        if key == "lr" and value.startswith("x"):
            group = replace(group, lr_factor=parse_number("group.lr", value[1:]))
        elif key == "wd":
            group = replace(group, wd=parse_number("group.wd", value))
        elif key == "by" and value in ("muon", "adamw"):
            group = replace(group, by=value)
        else:
            raise PlanError(
                "optimizer.group",
                f"'{word}' is not a setting of a group",
                "Write group=PATTERN:lr=x0.1,wd=0.",
            )
    return group


def parse_number(key: str, text: str) -> float:
    number = real(text)
    if number is None or number < 0:
        raise PlanError(f"optimizer.{key}", f"'{text}' is not a number of 0 or more", "Write one.")
    return number


def parse_word(key: str, text: str) -> str:
    if text not in CHOICES[key]:
        remedy = f"Choose {' or '.join(CHOICES[key])}."
        raise PlanError(f"optimizer.{key}", f"'{text}' is not a choice", remedy)
    return text


def parse_steps(text: str) -> int:
    steps = whole(text)
    if steps is None or not 1 <= steps <= MOST_NS_STEPS:
        problem = f"'{text}' is not a whole number from 1 to {MOST_NS_STEPS}"
        raise PlanError("optimizer.ns_steps", problem, "Write one, such as 5.")
    return steps
