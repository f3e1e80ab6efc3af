"""A checkpoint's manifest: the run's state, and the file that stores each slice of each tensor.

The manifest is JSON and is not trusted: file names that lead out of the folder, slices that exceed
their tensor and values of the wrong type are refused before any file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError, Unproven

from .hashing import BLAKE3, SHA256
from .safetensors_file import DTYPE_CODES, DTYPES, FileDigest
from .tensor_slice import TensorSlice

OLDEST, FORMAT = 2, 3  # since 3 a file's entry names its hash; before, all were SHA-256
HASHES = (BLAKE3, SHA256)
STATE_TYPES: dict[str, type] = {  # of optional entries of the state, which may be null
    **dict.fromkeys(("plan", "optimizer", "rate", "precision"), str),
    **dict.fromkeys(("loss_scale", "health", "versions", "shape", "config", "adapters"), dict),
    **{"structure": dict, "differing": list, "copies": list, "batch": int, "best": dict},
}
LARGEST = 2**63  # torch's sizes are int64


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """One slice of a tensor, and the file and key under which it is stored."""

    slice: TensorSlice
    file: str
    key: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A whole tensor, stored as one slice per rank that owned part of it."""

    shape: tuple[int, ...]
    dtype: str  # as safetensors names it
    stored: tuple[StoredSlice, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`."""

    state: Mapping[str, Any]  # step, position, seed, plan, loss scale, versions
    files: Mapping[str, FileDigest]
    tensors: Mapping[str, TensorEntry]  # "model/…" and "optimizer/…"
    ranks: int = 1  # that wrote it

    def to_json(self) -> str:
        return json.dumps(  # on one line, because indenting takes ten times as long
            {
                "format": FORMAT,
                "ranks": self.ranks,
                "state": dict(self.state),
                "files": {name: asdict(written) for name, written in self.files.items()},
                "tensors": {
                    name: {
                        "shape": list(whole.shape),
                        "dtype": whole.dtype,
                        "stored": [
                            [list(s.slice.start), list(s.slice.size), s.file, s.key]
                            for s in whole.stored
                        ],
                    }
                    for name, whole in self.tensors.items()
                },
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, path: Path) -> Manifest:
        try:
            return parse(json.loads(text), path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            raise RecordError(
                "checkpoint", f"{path} is not a manifest ({wrong})", "Use an older checkpoint."
            ) from wrong

    def incomplete(self) -> list[str]:
        """The names of tensors whose slices are not all there, or are there twice."""
        return [
            name
            for name, whole in self.tensors.items()
            if sum(one.slice.count for one in whole.stored) != prod(whole.shape)
        ]

    def names(self, kind: str) -> list[str]:
        """The names of tensors of a kind, "model" or "optimizer", without that prefix."""
        return [n.partition("/")[2] for n in self.tensors if n.startswith(f"{kind}/")]


@dataclass(slots=True)
class RankFiles:
    """The files that one rank wrote and the tensor slices in them."""

    files: dict[str, FileDigest] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)


def merge(parts: Iterable[RankFiles], state: Mapping[str, Any], ranks: int) -> Manifest:
    """Make one manifest from what every rank wrote."""
    files: dict[str, FileDigest] = {}
    tensors: dict[str, TensorEntry] = {}
    for part in parts:
        files |= part.files
        for name, piece in part.tensors.items():
            known = tensors.get(name, piece)
            stored = known.stored if known is piece else (*known.stored, *piece.stored)
            tensors[name] = TensorEntry(piece.shape, piece.dtype, stored)
    return Manifest(state, files, tensors, ranks)


def parse(found: Mapping[str, Any], path: Path) -> Manifest:
    check_format(natural_number(found["format"]), path)
    files = {safe_name(name): parse_digest(written) for name, written in found["files"].items()}
    tensors = {str(name): parse_tensor(t, files) for name, t in found["tensors"].items()}
    return Manifest(parse_state(found["state"]), files, tensors, natural_number(found["ranks"]))


def parse_state(found: Mapping[str, Any]) -> dict[str, Any]:
    """The run's state, with the type of every entry checked."""
    state = dict(found)
    for key in ("step", "position"):
        natural_number(state[key])
    if type(state["seed"]) is not int:
        raise ValueError(f"its seed is {state['seed']!r}")
    for key, kind in STATE_TYPES.items():
        if not isinstance(state.get(key, kind()), kind) and state[key] is not None:
            raise ValueError(f"its {key} is {state[key]!r}")
    for name, settings in (state.get("adapters") or {}).items():
        dict(settings, name=safe_name(name))  # the name becomes a folder and the settings a file
    scale, health = state["loss_scale"] or {}, state.get("health") or {}
    losses = health.get("losses", [])
    counts = [health.get(key, 0) for key in ("halvings", "calm", "rewinds")]
    numbers = [*(scale[key] for key in ("scale", "good_steps") if scale), *losses]
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("its loss scale or its losses are not numbers")
    for count in counts:
        natural_number(count)
    return {**state, "loss_scale": scale, "health": health}


def check_format(number: int, path: Path) -> None:
    if number > FORMAT:  # not damage, so do not fall back to an older checkpoint and lose steps
        raise Unproven(
            "checkpoint",
            f"{path} is of format {number}, this version reads {OLDEST} to {FORMAT}",
            "Install the stepladder that wrote it, or a newer one.",
        )
    if number < OLDEST:
        raise ValueError(f"format {number}, this version reads {OLDEST} to {FORMAT}")


def parse_digest(found: Mapping[str, Any]) -> FileDigest:
    name = found.get("hash", SHA256)
    if name not in HASHES:
        raise ValueError(f"{name!r} is not a hash; known are {', '.join(HASHES)}")
    return FileDigest(natural_number(found["size"]), str(found["digest"]), name)


def parse_tensor(found: Mapping[str, Any], files: Mapping[str, FileDigest]) -> TensorEntry:
    shape = tuple(map(natural_number, found["shape"]))
    if found["dtype"] not in DTYPES:
        raise ValueError(
            f"'{found['dtype']}' is not a type; known are {', '.join(DTYPE_CODES.values())}"
        )
    stored: dict[TensorSlice, StoredSlice] = {}
    for start, size, file, key in found["stored"]:
        part = TensorSlice(tuple(map(natural_number, start)), tuple(map(natural_number, size)))
        if file not in files:
            raise ValueError(f"'{file}' is not among its files")
        if not len(part.start) == len(part.size) == len(shape) or any(
            a + n > m for a, n, m in zip(part.start, part.size, shape)
        ):
            raise ValueError("a slice exceeds its tensor")
        # Once: older pipelines wrote what several stages hold several times.
        stored.setdefault(part, StoredSlice(part, file, str(key)))
    return TensorEntry(shape, found["dtype"], tuple(stored.values()))


def safe_name(name: str) -> str:
    """Check that a file name cannot lead out of its folder."""
    if not name or Path(name).name != name or name in (".", "..") or "\\" in name or "\0" in name:
        raise ValueError(f"the name {name!r} leads out of the folder")
    return name


def natural_number(number: Any) -> int:
    if type(number) is not int or not 0 <= number < LARGEST:
        raise ValueError(f"{number!r} is not a whole number")
    return number
