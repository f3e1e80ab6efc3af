"""A plan's activation checkpointing, gradient compression, pipeline schedule and exactness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepladder.errors import PlanError

from .shared_constants import MASTER_STATE
from .typed_values import real, whole

GIB = 2**30
KINDS_OF_EXACT = "Choose none, free, runs, ranks or ranks:16."
DEFAULT_SLICES = 8  # of a global batch, with `exact=ranks`: as many ranks may share it


def parse_bytes(field: str, text: str) -> int:
    """Bytes from `12GiB` or `0.5GiB`."""
    number = text.removesuffix("GiB")
    size = real(number) or 0.0
    if number == text or not 1 <= round(size * GIB) < 2**50:
        raise PlanError(field, f"'{text}' is not a size", "Write it in GiB, such as 12GiB.")
    return round(size * GIB)


def format_bytes(num_bytes: int) -> str:
    return f"{num_bytes / GIB!r}GiB".replace(".0GiB", "GiB")


def parse_count(field: str, text: str, least: int = 1) -> int:
    count = whole(text)
    if count is None or not least <= count < 2**31:
        problem = f"'{text}' is not a whole number of {least} or more"
        raise PlanError(field, problem, "Write a number.")
    return count


def parse_recheck(text: str) -> int:
    """Steps from one that is taken twice to the next; 0 from `none` and `0`."""
    return 0 if text in ("none", "0") else parse_count("recheck", text)


def parse_state(text: str) -> int:
    """Bytes a parameter, with its 16-bit gradient, its master and both of Adam's moments."""
    if text not in map(str, MASTER_STATE):
        known = ", ".join(map(str, MASTER_STATE))
        raise PlanError("state", f"'{text}' is none of {known} bytes a parameter", "Use state=14.")
    return int(text)


def parse_prefetch(text: str) -> int:
    """Blocks gathered ahead of the one that computes; 0: each when its turn comes."""
    return parse_count("prefetch", text, least=0)


@dataclass(frozen=True, slots=True)
class Recompute:
    """Activation checkpointing: what the backward pass recomputes instead of saving."""

    kind: Literal["none", "blocks", "selective", "every", "budget"] = "none"
    every: int = 1  # with "every": one block in so many is recomputed
    budget_bytes: int = 0  # with "budget": activations may take this much

    @property
    def chooses(self) -> bool:
        """Whether blocks save the outputs of their matmuls and recompute only the rest."""
        return self.kind in ("selective", "budget")

    def repeats(self, index: int) -> bool:
        """With "every": whether the block of this index is computed again; the first one is."""
        return index % self.every == 0

    @classmethod
    def parse(cls, text: str) -> Recompute:
        if text in ("none", "blocks", "selective"):
            return cls(text)  # type: ignore[arg-type]
        if text.startswith("every:"):
            return cls("every", every=parse_count("recompute", text.removeprefix("every:")))
        if text.endswith("GiB"):
            return cls("budget", budget_bytes=parse_bytes("recompute", text))
        raise PlanError(
            "recompute",
            f"'{text}' is not a way to recompute",
            "Choose none, blocks, selective, every:2 or a budget such as 8GiB.",
        )

    def __str__(self) -> str:
        if self.kind == "every":
            return f"every:{self.every}"
        return format_bytes(self.budget_bytes) if self.kind == "budget" else self.kind


@dataclass(frozen=True, slots=True)
class Compress:
    """How gradients are compressed before they are reduced."""

    kind: Literal["none", "bf16", "fp16", "powersgd"] = "none"
    rank: int = 0  # with "powersgd": columns of each factor

    @classmethod
    def parse(cls, text: str) -> Compress:
        if text in ("none", "bf16", "fp16"):
            return cls(text)  # type: ignore[arg-type]
        if text.startswith("powersgd:"):
            return cls("powersgd", rank=parse_count("compress", text.removeprefix("powersgd:")))
        raise PlanError(
            "compress",
            f"'{text}' is not a compression",
            "Choose none, bf16, fp16 or powersgd:4.",
        )

    def __str__(self) -> str:
        return f"powersgd:{self.rank}" if self.kind == "powersgd" else self.kind


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pipeline schedule: the order in which stages run micro-batches."""

    kind: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] = "1f1b"
    virtual: int = 1  # stages each rank holds

    @classmethod
    def parse(cls, text: str) -> Schedule:
        if text in ("gpipe", "1f1b"):
            return cls(text)  # type: ignore[arg-type]
        if text == "zero-bubble":
            return cls("zero-bubble", virtual=2)  # V-shaped: each rank holds two stages
        if text.startswith("interleaved:"):
            virtual = parse_count("schedule", text.removeprefix("interleaved:"))
            return cls("interleaved", virtual=virtual)
        raise PlanError(
            "schedule",
            f"'{text}' is not a pipeline schedule",
            "Choose gpipe, 1f1b, interleaved:2 or zero-bubble.",
        )

    def __str__(self) -> str:
        return f"interleaved:{self.virtual}" if self.kind == "interleaved" else self.kind


@dataclass(frozen=True, slots=True)
class Exact:
    """Whether a run gives the same bits each time (`runs`), and on any number of ranks (`ranks`).

    For the latter the global batch is cut into equal slices, one micro-batch each, and their
    gradients are added up in a fixed binary tree. The number of slices belongs to the run, not to
    its ranks.

    `free` is what `auto` adds where a trial found no price: deterministic algorithms wherever there
    are any. An operator without one runs as it is, and torch warns of it, while `runs` refuses it.
    """

    runs: bool = False  # only deterministic algorithms
    free: bool = False  # but for operators that have none
    slices: int = 0  # 0: sums depend on the number of ranks

    @classmethod
    def parse(cls, text: str) -> Exact:
        if text in ("none", "free", "runs"):
            return cls(runs=text != "none", free=text == "free")
        kind, colon, number = text.partition(":")
        if kind != "ranks":
            raise PlanError("exact", f"'{text}' is not a kind", KINDS_OF_EXACT)
        slices = parse_count("exact", number) if colon else DEFAULT_SLICES
        if slices & (slices - 1):
            below = 1 << (slices.bit_length() - 1)
            raise PlanError(
                "exact",
                f"{slices} slices make no binary tree",
                f"Use a power of two: {below} or {2 * below}.",
            )
        return cls(runs=True, slices=slices)

    def __str__(self) -> str:
        kind = "free" if self.free else "runs" if self.runs else "none"
        return f"ranks:{self.slices}" if self.slices else kind
