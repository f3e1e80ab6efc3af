"""A checkpoint's model in other people's files, and back: one tensor in memory at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepladder.errors import RecordError

from .folder import commit, folder_of, refuse_pickles, write_text
from .manifest import Part, Stored, Tensors, merge
from .reader import Reader
from .safetensors_file import CODES, TYPES, Source, TensorFile, on_pages, open_tensors, write_files
from .tensor_boxes import whole_box

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 2**30  # of one file, as Hugging Face cuts them


def stored_tensors(reader: Reader, dtype: torch.dtype | None = None) -> list[Source]:
    """The model's tensors under their own names."""
    return [
        joint_source(reader, name, (name,), dtype)
        for name in sorted(reader.manifest.names("model"))
    ]


def joint_source(
    reader: Reader,
    name: str,
    ours: Sequence[str],
    dtype: torch.dtype | None,
    *,
    turned: bool = False,
) -> Source:
    """Tensors of the checkpoint one below the other, as one; in another type where asked."""
    missing = [one for one in ours if f"model/{one}" not in reader.manifest.tensors]
    if missing:
        raise RecordError(
            "checkpoint",
            f"{reader.path} holds no '{missing[0]}'",
            "Convert under the model's own names with --names same.",
        )

    def make() -> Tensor:
        parts = [reader.whole(f"model/{one}") for one in ours]
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        made = made.t().contiguous() if turned else made
        if dtype is None or not made.is_floating_point():
            return made
        return on_pages(made.shape, dtype).copy_(made)

    first, *others = [reader.manifest.tensors[f"model/{one}"] for one in ours]
    shape = first.shape
    if others:
        shape = (sum(entry.shape[0] for entry in (first, *others)), *shape[1:])
    kind = TYPES[first.dtype]
    if dtype is not None and kind.is_floating_point:
        kind = dtype
    return Source(name, kind, shape[::-1] if turned else shape, make)


def write_huggingface(
    sources: Iterable[Source], folder: Path, config: Mapping[str, Any] | None, shard_bytes: int
) -> list[Path]:
    """Files and an index that `from_pretrained` reads; the folder appears when it is whole."""
    groups = list(grouped(sources, shard_bytes))
    index: dict[str, str] = {}
    total = 0
    with beside(folder) as partial:
        for number, group in enumerate(groups, 1):
            numbered = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            name = numbered if len(groups) > 1 else "model.safetensors"
            write_files({partial / name: group}, {"format": "pt"})
            total += sum(source.num_bytes for source in group)
            index |= {source.name: name for source in group}
        if len(groups) > 1:
            text = {"metadata": {"total_size": total}, "weight_map": index}
            write_text(partial / INDEX, json.dumps(text, indent=2))
        if config is not None:
            write_text(partial / "config.json", json.dumps(dict(config), indent=2))
        partial.rename(folder)
    return sorted(folder.iterdir())


def write_adapter(
    sources: Iterable[Source], folder: Path, settings: Mapping[str, Any]
) -> list[Path]:
    """The two files of one adapter that peft reads; the folder appears when it is whole."""
    text = json.dumps({**settings, "inference_mode": True}, indent=2, sort_keys=True)
    with beside(folder) as partial:
        write_files({partial / "adapter_model.safetensors": list(sources)}, {"format": "pt"})
        write_text(partial / "adapter_config.json", text)
        partial.rename(folder)
    return sorted(folder.iterdir())


def grouped(sources: Iterable[Source], limit: int) -> Iterator[list[Source]]:
    """Sources in order, together no larger than the limit where each alone is not."""
    group: list[Source] = []
    for source in sources:
        if group and sum(one.num_bytes for one in group) + source.num_bytes > limit:
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def write_state_dict(sources: Iterable[Source], path: Path) -> None:
    """A file for `torch.load(path, weights_only=True)`.

    torch writes it from tensors that live in a file beside it, so that memory holds few of them.
    """
    with beside(path) as partial:
        streamed, made = partial / "streamed", partial / "made"
        write_files({streamed: list(sources)})
        with open_tensors(streamed) as file:
            torch.save({name: file.tensor(name) for name in sorted(file.names())}, made)
        made.rename(path)


class Huggingface:
    """The tensors of a folder that Hugging Face wrote, in one file or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = self._index()
        self.open: dict[str, TensorFile] = {}

    def _index(self) -> dict[str, str]:
        path = self.folder / INDEX
        if path.exists():
            try:
                where = json.loads(path.read_text())["weight_map"]
                names = {str(name): str(file) for name, file in where.items()}
            except (ValueError, KeyError, AttributeError, TypeError) as wrong:
                raise RecordError(
                    "checkpoint", f"{path} is no index ({wrong})", "See it."
                ) from wrong
            bad = [file for file in names.values() if Path(file).name != file]
            if bad:
                raise RecordError(
                    "checkpoint", f"{path} leads out of its folder ({bad[0]})", "Do not use it."
                )
            return names
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            refuse_pickles(self.folder)
            raise RecordError(
                "checkpoint", f"{self.folder} holds no safetensors", "Name a model's folder."
            )
        found: dict[str, str] = {}
        for file in files:
            with open_tensors(file) as opened:
                found |= dict.fromkeys(opened.names(), file.name)
        return found

    def tensor(self, name: str) -> Tensor:
        """A tensor that lives in its file."""
        if name not in self.where:
            raise RecordError("checkpoint", f"{self.folder} holds no '{name}'", "See --names same.")
        file = self.where[name]
        if file not in self.open:
            with open_tensors(self.folder / file) as opened:
                self.open[file] = opened
        return self.open[file].tensor(name)


def write_checkpoint(
    sources: Iterable[Source], root: Path, state: Mapping[str, Any], shard_bytes: int
) -> Path:
    """A checkpoint at step 0 that holds these tensors as its model."""
    final = folder_of(root, 0)
    part = Part()
    with beside(final) as partial:
        for number, group in enumerate(grouped(sources, shard_bytes)):
            name = f"model-{number:05d}.safetensors"
            part.files |= {name: write_files({partial / name: group})[partial / name]}
            for one in group:
                stored = (Stored(whole_box(one.shape), name, one.name),)
                part.tensors[f"model/{one.name}"] = Tensors(one.shape, CODES[one.dtype], stored)
        commit(partial, final, merge([part], state, 0))
    return final


@contextmanager
def beside(final: Path) -> Iterator[Path]:
    """A hidden folder to make something in; what is not renamed out of it does not stay."""
    if final.exists():
        raise RecordError("out", f"{final} exists", "Name a new place.")
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
