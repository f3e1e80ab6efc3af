"""The text of a plan: the shorthand people type, and the TOML that is stored beside a run.

Both hold the same words. `parse_fields` turns words into the plan's fields, reporting every
mistake at once; `plan_words` turns fields into the shortest words that parse to the same plan.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from stepladder.errors import PlanError, nearest, raise_all

from .batch import BatchSplit
from .layout import AXES, REST, Layout
from .optimizer import Optimizer
from .options import (
    Compress,
    Exact,
    Recompute,
    Schedule,
    format_bytes,
    parse_bytes,
    parse_count,
    parse_prefetch,
    parse_recheck,
    parse_state,
)
from .precision import ELSEWHERE, PRECISIONS, Precision
from .typed_values import nearest_word, toml_value, word_of, writable

DATA_WORDS = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
OFFLOADS = ("optimizer", "parameters", "activations")
ATTENTIONS = ("auto", "flash", "plain")
BATCHNORMS = ("sync", "local")
UPDATES = ("step", "backward")
SWITCH = ("on", "off")
COMPILES = (*SWITCH, "blocks", "whole")
KERNELS = ("head", "layout", "matmuls")  # fused head, channels-last, tried matmuls and epilogues
BATCH_KEYS = {"batch": "sequences", "micro": "micro", "accumulate": "micro_batches"}


def parse_axis_size(axis: str, text: str) -> int:
    return REST if text == str(REST) else parse_count(f"layout.{axis}", text)


def parse_keep(text: str) -> tuple[str, ...]:
    kind, _, names = text.partition(":")
    if kind != "fp32" or not all(names.split(",")):
        raise PlanError("keep", f"'{text}' names nothing to keep", "Write keep=fp32:embed,head.")
    return tuple(names.split(","))


def parse_offload(text: str) -> tuple[str, ...]:
    parts = () if text == "none" else tuple(text.split(","))
    for part in parts:
        if part not in OFFLOADS:
            raise PlanError(
                "offload", f"'{part}' cannot be offloaded", nearest(part, ["none", *OFFLOADS])
            )
    return tuple(part for part in OFFLOADS if part in parts)


def parse_switch(field: str, text: str) -> bool:
    if text not in SWITCH:
        raise PlanError(field, f"'{text}' is neither on nor off", f"Write {field}=on.")
    return text == "on"


def parse_compile(text: str) -> bool | str:
    if text not in COMPILES:
        raise PlanError(
            "compile", f"'{text}' is none of {', '.join(COMPILES)}", "Write compile=on."
        )
    return text == "on" if text in SWITCH else text


def parse_kernels(text: str) -> bool | tuple[str, ...]:
    if text in SWITCH:
        return text == "on"
    parts = text.split(",")
    for part in parts:
        if part not in KERNELS:
            known = nearest(part, [*SWITCH, *KERNELS])
            raise PlanError("kernels", f"'{part}' is not a kind of kernel", known)
    named = tuple(part for part in KERNELS if part in parts)
    return named == KERNELS or named


def parse_attention(text: str) -> str:
    if text not in ATTENTIONS:
        raise PlanError("attention", f"'{text}' is not a kind", nearest(text, ATTENTIONS))
    return text


def parse_choice(field: str, choices: tuple[str, str], text: str) -> str:
    if text not in choices:
        raise PlanError(field, f"'{text}' is neither", nearest(text, choices))
    return text


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {  # word: (the plan's field, its reader)
    "precision": ("precision", Precision.parse),
    "keep": ("keep", parse_keep),
    "prefetch": ("prefetch", parse_prefetch),
    "gathered": ("gathered", partial(parse_count, "gathered")),
    "recompute": ("recompute", Recompute.parse),
    "offload": ("offload", parse_offload),
    "compress": ("compress", Compress.parse),
    "schedule": ("schedule", Schedule.parse),
    "compile": ("compile", parse_compile),
    "kernels": ("kernels", parse_kernels),
    "graphs": ("graphs", partial(parse_switch, "graphs")),
    "attention": ("attention", parse_attention),
    "batchnorm": ("batchnorm", partial(parse_choice, "batchnorm", BATCHNORMS)),
    "exact": ("exact", Exact.parse),
    "recheck": ("recheck", parse_recheck),
    "state": ("state", parse_state),
    "update": ("update", partial(parse_choice, "update", UPDATES)),
    "memory": ("memory_bytes", lambda text: parse_bytes("memory", text)),
    "optimizer": ("optimizer", Optimizer.parse),
}
KEYS = (*FIELDS, *AXES, *BATCH_KEYS)


def split_shorthand(text: str) -> Iterator[tuple[str, str]]:
    """Each word of the shorthand as (key, value); bare words name a precision or a data rung."""
    try:
        words = shlex.split(text)
    except ValueError as unbalanced:
        raise PlanError("plan", f"{text!r} has an open quote", "Close it.") from unbalanced
    for word in words:
        key, equals, value = word.partition("=")
        yield (key, value) if equals else (bare_key(word), word)


def bare_key(word: str) -> str:
    if word in PRECISIONS:
        return "precision"
    return "data" if word in DATA_WORDS else ""


ALL_WORDS = (*PRECISIONS, *DATA_WORDS, *KEYS)


def parse_fields(words: Iterator[tuple[str, str]]) -> dict[str, Any]:
    """The plan's fields from its words."""
    problems: list[PlanError] = []
    fields: dict[str, Any] = {}
    axes: dict[str, int] = {}
    batch: dict[str, int] = {}
    seen: dict[str, str] = {}
    while True:
        try:
            key, value = next(words)
            if not writable(key + value):
                raise PlanError("plan", f"{key + value!r} is not text", "Leave such letters out.")
            if key and seen.setdefault(key, value) != value:
                raise PlanError(key, f"given twice, as {seen[key]} and {value}", "Keep one.")
            if key in FIELDS:
                name, reader = FIELDS[key]
                fields[name] = reader(value)
            elif key in AXES:
                axes[key] = parse_axis_size(key, value)
            elif key in BATCH_KEYS:
                batch[BATCH_KEYS[key]] = parse_count(f"batch.{key}", value)
            elif key != "data" or value not in DATA_WORDS:
                raise unknown(key, value)
        except StopIteration:
            break
        except PlanError as problem:
            problems.append(problem)
    if "data" in seen and seen["data"] in DATA_WORDS:
        axes, fields["zero"] = (
            open_data_axes(seen["data"], axes, problems),
            DATA_WORDS[seen["data"]],
        )
    raise_all(problems)
    return {**fields, "layout": Layout(**axes), "batch": BatchSplit(**batch)}


def unknown(key: str, value: str) -> PlanError:
    if key == "data":
        return PlanError("data", f"'{value}' is not a data rung", nearest(value, DATA_WORDS))
    word = key or value
    if value in KEYS:
        return PlanError(value, f"stands alone, and is written {value}=VALUE", possible(value))
    return PlanError(
        "plan", f"'{word}' is not a word of a plan", nearest_word(word, ALL_WORDS, ELSEWHERE)
    )


def possible(key: str) -> str:
    """The values of a key, as its reader names them."""
    if key in FIELDS:
        try:
            FIELDS[key][1]("")
        except PlanError as problem:
            return problem.remedy
    return f"Write {key}=2."


def open_data_axes(word: str, axes: dict[str, int], problems: list[PlanError]) -> dict[str, int]:
    """The axes, with the one that a data word implies left open where its size is not given."""
    if word == "hsdp":
        if "shard" not in axes and "replicate" not in axes:
            problems.append(
                PlanError("hsdp", "needs the width of one axis", "Add shard=8 (ranks of a node).")
            )
        return {"replicate" if "shard" in axes else "shard": REST, **axes}
    axis = "replicate" if word == "ddp" else "shard"
    return {axis: REST, **axes}


def plan_words(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """The words that read back as these fields, by key, leaving out what is the default."""
    words = {"precision": str(fields["precision"])}
    layout: Layout = fields["layout"]
    if fields["zero"]:
        words["data"] = f"zero{fields['zero']}"
    for axis, ways in zip(AXES, layout.shape):
        if ways != 1 or (axis == "shard" and fields["zero"]):
            words[axis] = str(ways)
    for key, name in BATCH_KEYS.items():
        if (count := getattr(fields["batch"], name)) is not None:
            words[key] = str(count)
    for key, (name, _) in FIELDS.items():
        if key != "precision" and fields[name] != defaults[name]:
            words[key] = write_value(key, fields[name])
    return words


def write_value(key: str, value: Any) -> str:
    match key:
        case "keep":
            return f"fp32:{','.join(value)}"
        case "offload":
            return ",".join(value)
        case "compile" | "kernels" | "graphs" if isinstance(value, bool):
            return "on" if value else "off"
        case "kernels":
            return ",".join(value)
        case "memory":
            return format_bytes(value)
    return str(value)


def write_shorthand(words: Mapping[str, str]) -> str:
    bare = ("precision", "data")
    return " ".join(
        value if key in bare else shlex.quote(f"{key}={value}") for key, value in words.items()
    )


def write_toml(words: Mapping[str, str]) -> str:
    """One line a word; whole numbers bare, the rest as strings."""
    number = (*AXES, *BATCH_KEYS)
    return "".join(
        f"{key} = {value if key in number else toml_value(value)}\n" for key, value in words.items()
    )


def words_of_toml(text: str) -> Iterator[tuple[str, str]]:
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as broken:
        raise PlanError("plan.toml", f"is not TOML: {broken}", "Mend that line.") from broken
    return words_of_table(table)


def words_of_table(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((key, word_of(value)) for key, value in table.items())
