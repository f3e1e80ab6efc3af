"""Look into checkpoints, prove that they are as written, and turn them into other formats.

verify: read every byte of a checkpoint, or of all checkpoints of a run.
inspect: where the run stood, on which ranks, and what is kept.
convert: a checkpoint's model into Hugging Face's files, its adapters into peft's, or a plain
state_dict; or Hugging Face's files into a checkpoint that a run starts from.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.cli.results.tables import as_json, progress, table
from stepladder.errors import RecordError, StepladderError

if TYPE_CHECKING:
    from stepladder.checkpoint import CheckpointReader, Manifest, TensorSource
    from stepladder.checkpoint.convert import HuggingfaceFolder
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
    """A checkpoint's model in another format; every byte is checked before any is written."""
    from stepladder.checkpoint import CheckpointReader, find_checkpoints, verify_checkpoint
    from stepladder.checkpoint.convert import write_huggingface, write_state_dict
    from stepladder.model.huggingface.tensor_names import huggingface_config

    path = next(find_checkpoints(options.path))
    manifest = verify_checkpoint(path)
    with CheckpointReader(path, manifest) as reader:
        if options.to == "adapters":
            return adapters_out(reader, options.out, options.dtype)
        if options.to == "huggingface":
            refuse_adapters(manifest)
        shape = None if options.names == "same" else built_in(manifest)
        sources = progress(sources_of(reader, shape, options.dtype), "Converting")
        if options.to == "state_dict":
            write_state_dict(sources, options.out)
            return [options.out]
        config = huggingface_config(shape) if shape else manifest.state.get("config")
        return write_huggingface(sources, options.out, config, limit)


def refuse_adapters(manifest: Manifest) -> None:
    names = ", ".join(manifest.state.get("adapters") or ())
    if names:
        raise RecordError(
            "checkpoint",
            f"it holds adapters ({names}) beside the weights they were trained on",
            "Write them with --to adapters; peft's merge_and_unload makes one model of both.",
        )


def adapters_out(reader: CheckpointReader, folder: Path, dtype: str | None) -> list[Path]:
    """Each adapter in peft's layout: the one named default in the folder, others below it."""
    from dataclasses import replace

    from stepladder.checkpoint.convert import write_adapter
    from stepladder.model.huggingface.saved_settings import adapter_key

    adapters = reader.manifest.state.get("adapters") or {}
    if not adapters:
        raise RecordError("checkpoint", f"{reader.path} holds no adapters", "Use --to huggingface.")
    written: list[Path] = []
    for name, settings in sorted(adapters.items(), key=lambda one: one[0] != "default"):
        named = [(adapter_key(s.name, name), s) for s in sources_of(reader, None, dtype)]
        sources = [replace(source, name=key) for key, source in named if key is not None]
        place = folder if name == "default" else folder / name
        written += write_adapter(progress(sources, f"Adapter {name}"), place, settings)
    return [path for path in written if path.is_file()]


def sources_of(
    reader: CheckpointReader, shape: Shape | None, dtype: str | None
) -> list[TensorSource]:
    import torch

    from stepladder.checkpoint.convert import concatenated_source, model_tensors
    from stepladder.model.huggingface.tensor_names import huggingface_tensors

    kind = getattr(torch, dtype) if dtype else None
    if shape is None:
        return model_tensors(reader, kind)
    return [
        concatenated_source(reader, one.name, one.stored_names, kind, transposed=one.transposed)
        for one in huggingface_tensors(shape)
    ]


def built_in(manifest: Manifest) -> Shape | None:
    """The shape of a built-in language model, which the run noted."""
    from stepladder.workload import Shape

    noted = manifest.state.get("shape")
    try:
        return Shape(**noted) if isinstance(noted, dict) else None
    except TypeError:
        return None


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

    return [
        source(one.name, ours, index, len(one.stored_names), one.transposed)
        for one in huggingface_tensors(shape)
        for index, ours in enumerate(one.stored_names)
    ]
