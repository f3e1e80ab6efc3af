"""Look into checkpoints, prove that they are as written, and turn them into other formats.

verify: read every byte of a checkpoint, or of all checkpoints of a run.
inspect: where the run stood, on which ranks, and what is kept.
convert: a checkpoint's model into Hugging Face's files, with adapters merged, its adapters into
peft's, or a plain state_dict; or Hugging Face's files into a checkpoint that a run starts from.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json, progress, table
from stepladder.errors import RecordError, StepladderError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepladder.checkpoint import Manifest, TensorSource
    from stepladder.checkpoint.convert import HuggingfaceFolder
    from stepladder.model.huggingface.tensor_names import HuggingfaceTensor
    from stepladder.workload import Shape

FORMATS = ("huggingface", "adapters", "state_dict", "checkpoint")
TYPES = ("float32", "bfloat16", "float16")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["verify", "inspect", "convert"])
    parser.add_argument("path", type=Path, metavar="PATH", help="a run's folder or a checkpoint")
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="convert: what to write")
    parser.add_argument("--to", choices=FORMATS, default="huggingface", help="convert: into what")
    parser.add_argument("--dtype", choices=TYPES, help="convert: store floats in another type")
    parser.add_argument(
        "--names",
        choices=("auto", "same"),
        default="auto",
        help="convert: same keeps the model's own names; auto gives a built-in model's tensors "
        "the names of Hugging Face's, and back",
    )
    parser.add_argument(
        "--shard", type=float, default=5.0, metavar="GiB", help="convert: largest file"
    )
    parser.add_argument("--tensors", action="store_true", help="inspect: list every tensor")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace) -> int:
    match options.what:
        case "verify":
            return verify_all(options)
        case "inspect":
            return inspect(options)
    return convert(options)


def verify_all(options: argparse.Namespace) -> int:
    from stepladder.checkpoint import find_checkpoints, verify_checkpoint

    rows = []
    for path in progress(list(find_checkpoints(options.path)), "Reading every byte"):
        try:
            manifest = verify_checkpoint(path)
        except RecordError as found:
            rows.append({"checkpoint": path.name, "whole": False, "found": str(found)})
        else:
            size = sum(written.size for written in manifest.files.values())
            said = f"{counted(len(manifest.files), 'file')}, {size_of(size)}"
            rows.append({"checkpoint": path.name, "whole": True, "found": said})
    if options.json:
        as_json({"checkpoints": rows})
    else:
        table("Checkpoints", ["checkpoint", "whole", "found"], [list(r.values()) for r in rows])
    return 0 if all(row["whole"] for row in rows) else 1


def inspect(options: argparse.Namespace) -> int:
    from stepladder.checkpoint import find_checkpoints, read_manifest

    path = next(find_checkpoints(options.path))
    manifest = read_manifest(path)
    facts = {"checkpoint": str(path), **facts_of(manifest)}
    tensors = [
        {"name": name, "shape": list(one.shape), "type": one.dtype, "boxes": len(one.stored)}
        for name, one in sorted(manifest.tensors.items())
    ]
    if options.json:
        as_json(
            {**facts, "state": manifest.state, **({"tensors": tensors} if options.tensors else {})}
        )
        return 0
    table("Checkpoint", ["what", "value"], [[k, v] for k, v in facts.items()])
    if options.tensors:
        table("Tensors", ["name", "shape", "type", "boxes"], [list(t.values()) for t in tensors])
    return 0


def facts_of(manifest: Manifest) -> dict[str, Any]:
    from stepladder.checkpoint import whole_slice

    state = manifest.state
    model = [manifest.tensors[f"model/{name}"] for name in manifest.names("model")]
    size = sum(written.size for written in manifest.files.values())
    return {
        "step": state["step"],
        "samples seen": state["position"],
        "plan": state.get("plan", "none"),
        "written by": counted(manifest.ranks, "rank") if manifest.ranks else "conversion",
        "model tensors": len(model),
        "model numbers": sum(whole_slice(one.shape).count for one in model),
        "optimizer tensors": len(manifest.names("optimizer")),
        "files": len(manifest.files),
        "size": size_of(size),
        "hash": ", ".join(sorted({written.hash for written in manifest.files.values()})),
        "versions": ", ".join(f"{k} {v}" for k, v in state.get("versions", {}).items()) or "none",
    }


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def size_of(num_bytes: int) -> str:
    for unit, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= one:
            return f"{num_bytes / one:.2f} {unit}"
    return counted(num_bytes, "byte")


def convert(options: argparse.Namespace) -> int:
    if options.out is None:
        raise StepladderError("out", "is missing", "Say where: convert PATH OUT.")
    if not 0 < options.shard < 2**20:
        raise StepladderError("shard", f"{options.shard:g} is not a size in GiB", "Try 5.")
    limit = int(options.shard * 2**30)
    make = from_huggingface if options.to == "checkpoint" else out
    try:
        made = make(options, limit)
    except OSError as refused:
        where, why = refused.filename or options.out, refused.strerror or refused
        problem = f"{where} cannot be read or written ({why})"
        raise RecordError("checkpoint", problem, "Name a place that can be.") from refused
    if options.json:
        as_json({"written": [str(path) for path in made]})
    else:
        rows = [[str(path), size_of(path.stat().st_size)] for path in made]
        table("Written", ["file", "size"], rows)
    return 0


def out(options: argparse.Namespace, limit: int) -> list[Path]:
    """A checkpoint's model in another format."""
    import torch

    from stepladder.job.export.export_checkpoint import export_checkpoint

    return export_checkpoint(
        options.path,
        options.out,
        to=options.to,
        dtype=getattr(torch, options.dtype) if options.dtype else None,
        own_names=options.names == "same",
        shard_bytes=limit,
        progress=progress,
    )


def from_huggingface(options: argparse.Namespace, limit: int) -> list[Path]:
    """A checkpoint that a run starts from."""
    from dataclasses import asdict

    from stepladder.checkpoint import write_checkpoint
    from stepladder.checkpoint.convert import HuggingfaceFolder
    from stepladder.version import VERSION
    from stepladder.workload.huggingface_config import read_config

    files = HuggingfaceFolder(options.path)
    shape = None if options.names == "same" else read_config(options.path / "config.json")
    sources = taken_apart(files, shape) if shape else as_they_are(files)
    state = {
        "step": 0, "position": 0, "seed": 0, "loss_scale": {},
        "shape": asdict(shape) if shape else None, "versions": {"stepladder": VERSION},
    }  # fmt: skip
    final = write_checkpoint(progress(sources, "Converting"), options.out, state, limit)
    return sorted(final.iterdir())


def as_they_are(files: HuggingfaceFolder) -> list[TensorSource]:
    from functools import partial

    from stepladder.checkpoint import TensorSource

    def source(name: str) -> TensorSource:
        seen = files.tensor(name)  # lives in its file
        return TensorSource(name, seen.dtype, tuple(seen.shape), partial(files.tensor, name))

    return [source(name) for name in sorted(files.file_of)]


def taken_apart(files: HuggingfaceFolder, shape: Shape) -> list[TensorSource]:
    """Hugging Face's tensors as the built-in model holds them."""
    from functools import partial

    from stepladder.checkpoint import TensorSource
    from stepladder.model.huggingface.tensor_names import huggingface_tensors

    def make(name: str, index: int, parts: int, turned: bool) -> Any:
        whole = files.tensor(name)
        whole = whole.t() if turned else whole
        return whole.chunk(parts)[index].clone().contiguous()

    def source(name: str, ours: str, index: int, parts: int, turned: bool) -> TensorSource:
        whole = files.tensor(name)
        seen = (whole.t() if turned else whole).chunk(parts)[index]
        made = partial(make, name, index, parts, turned)
        return TensorSource(ours, seen.dtype, tuple(seen.shape), made)

    named = huggingface_tensors(shape)
    return [
        source(one.name, ours, index, len(one.stored_names), one.transposed)
        for one in named
        for index, ours in enumerate(one.stored_names)
        if not one.place
    ] + stacked(files, named)


def stacked(files: HuggingfaceFolder, named: Iterable[HuggingfaceTensor]) -> list[TensorSource]:
    """Tensors of ours that hold those of all experts."""
    from functools import partial

    import torch

    from stepladder.checkpoint import TensorSource

    places: dict[str, dict[tuple[int, ...], str]] = {}
    for one in named:
        if one.place:
            places.setdefault(one.stored_names[0], {})[one.place] = one.name

    def make(inside: dict[tuple[int, ...], str], room: tuple[int, ...]) -> Any:
        every = torch.stack([files.tensor(inside[place]) for place in sorted(inside)])
        return every.view(room)

    found = []
    for ours, inside in places.items():
        seen = files.tensor(next(iter(inside.values())))
        room = *(n + 1 for n in max(inside)), *seen.shape
        found.append(TensorSource(ours, seen.dtype, room, partial(make, inside, room)))
    return found
