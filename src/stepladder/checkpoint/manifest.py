"""What a checkpoint says of itself: where the run stood, and where every number is kept.

The manifest is JSON. Whoever reads one believes nothing: names that lead out of the folder, boxes
that leave their tensor and numbers that are not numbers are all refused before a file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepladder.errors import RecordError, Unproven

from .hashing import BLAKE3, SHA256
from .safetensors_file import CODES, TYPES, Written
from .tensor_boxes import Box

OLDEST, FORMAT = 2, 3  # since 3 a file's entry names its hash; before, all were SHA-256
HASHES = (BLAKE3, SHA256)
KINDS: dict[str, type] = {  # of what else a run notes; each may be absent, or nothing
    **dict.fromkeys(("plan", "optimizer", "rate"), str),
    **dict.fromkeys(("loss_scale", "health", "versions", "shape", "config", "adapters"), dict),
}
LARGEST = 2**63  # of what torch counts with


@dataclass(frozen=True, slots=True)
class Stored:
    """One box of a tensor and where it is kept."""

    box: Box
    file: str
    key: str


@dataclass(frozen=True, slots=True)
class Tensors:
    """A whole tensor, in as many boxes as there were ranks that held it."""

    shape: tuple[int, ...]
    dtype: str  # safetensors' word for it
    stored: tuple[Stored, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    state: Mapping[str, Any]  # step, position, seed, plan, loss scale, versions
    files: Mapping[str, Written]
    tensors: Mapping[str, Tensors]  # "model/…" and "optimizer/…"
    ranks: int = 1  # that wrote it

    def to_json(self) -> str:
        return json.dumps(  # on one line: written for people it takes ten times as long
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
                            [list(s.box.start), list(s.box.size), s.file, s.key]
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

    def names(self, kind: str) -> list[str]:
        """Tensors of a kind, "model" or "optimizer", without its prefix."""
        return [n.partition("/")[2] for n in self.tensors if n.startswith(f"{kind}/")]


@dataclass(slots=True)
class Part:
    """What one rank wrote."""

    files: dict[str, Written] = field(default_factory=dict)
    tensors: dict[str, Tensors] = field(default_factory=dict)


def merge(parts: Iterable[Part], state: Mapping[str, Any], ranks: int) -> Manifest:
    """One manifest from what every rank wrote."""
    files: dict[str, Written] = {}
    tensors: dict[str, Tensors] = {}
    for part in parts:
        files |= part.files
        for name, piece in part.tensors.items():
            known = tensors.get(name, piece)
            stored = known.stored if known is piece else (*known.stored, *piece.stored)
            tensors[name] = Tensors(piece.shape, piece.dtype, stored)
    return Manifest(state, files, tensors, ranks)


def parse(found: Mapping[str, Any], path: Path) -> Manifest:
    check_format(whole(found["format"]), path)
    files = {plain(name): parse_written(written) for name, written in found["files"].items()}
    tensors = {str(name): parse_tensors(t, files) for name, t in found["tensors"].items()}
    return Manifest(parse_state(found["state"]), files, tensors, whole(found["ranks"]))


def parse_state(found: Mapping[str, Any]) -> dict[str, Any]:
    """Where the run stood, with every word of the kind that whoever goes on will take it for."""
    state = dict(found)
    for key in ("step", "position"):
        whole(state[key])
    if type(state["seed"]) is not int:
        raise ValueError(f"its seed is {state['seed']!r}")
    for key, kind in KINDS.items():
        if not isinstance(state.get(key, kind()), kind) and state[key] is not None:
            raise ValueError(f"its {key} is {state[key]!r}")
    for name, settings in (state.get("adapters") or {}).items():
        dict(settings, name=plain(name))  # it becomes a folder's name, and they a file
    scale, health = state["loss_scale"] or {}, state.get("health") or {}
    losses = health.get("losses", [])
    counts = [health.get(key, 0) for key in ("halvings", "calm", "rewinds")]
    numbers = [*(scale[key] for key in ("scale", "good_steps") if scale), *losses]
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("its loss scale or its losses are not numbers")
    for count in counts:
        whole(count)
    return {**state, "loss_scale": scale, "health": health}


def check_format(number: int, path: Path) -> None:
    if number > FORMAT:  # not damage: an older checkpoint would lose steps that are there
        raise Unproven(
            "checkpoint",
            f"{path} is of format {number}, this version reads {OLDEST} to {FORMAT}",
            "Install the stepladder that wrote it, or a newer one.",
        )
    if number < OLDEST:
        raise ValueError(f"format {number}, this version reads {OLDEST} to {FORMAT}")


def parse_written(found: Mapping[str, Any]) -> Written:
    name = found.get("hash", SHA256)
    if name not in HASHES:
        raise ValueError(f"{name!r} is not a hash; known are {', '.join(HASHES)}")
    return Written(whole(found["size"]), str(found["digest"]), name)


def parse_tensors(found: Mapping[str, Any], files: Mapping[str, Written]) -> Tensors:
    shape = tuple(map(whole, found["shape"]))
    if found["dtype"] not in TYPES:
        raise ValueError(f"'{found['dtype']}' is not a type; known are {', '.join(CODES.values())}")
    stored = []
    for start, size, file, key in found["stored"]:
        box = Box(tuple(map(whole, start)), tuple(map(whole, size)))
        if file not in files:
            raise ValueError(f"'{file}' is not among its files")
        if not len(box.start) == len(box.size) == len(shape) or any(
            a + n > m for a, n, m in zip(box.start, box.size, shape)
        ):
            raise ValueError("a box leaves its tensor")
        stored.append(Stored(box, file, str(key)))
    return Tensors(shape, found["dtype"], tuple(stored))


def plain(name: str) -> str:
    """A file's name that cannot lead out of its folder."""
    if not name or Path(name).name != name or name in (".", "..") or "\\" in name or "\0" in name:
        raise ValueError(f"the name {name!r} leads out of the folder")
    return name


def whole(number: Any) -> int:
    if type(number) is not int or not 0 <= number < LARGEST:
        raise ValueError(f"{number!r} is not a whole number")
    return number
