"""Converting a checkpoint's model to Hugging Face, peft or torch files and back.

Only one tensor is in memory at a time.
"""

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

from .commit import checkpoint_folder, commit, write_text
from .find import refuse_pickles
from .manifest import RankFiles, StoredSlice, TensorEntry, merge
from .reader import CheckpointReader, from_pairs
from .safetensors_file import (
    DTYPE_CODES,
    DTYPES,
    TensorFile,
    TensorSource,
    allocate_pages,
    open_tensors,
    write_files,
)
from .tensor_slice import TensorSlice, whole_slice

INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 2**30  # Hugging Face's usual file size


def model_tensors(reader: CheckpointReader, dtype: torch.dtype | None = None) -> list[TensorSource]:
    """The model's tensors, under the names they have in the checkpoint."""
    return [
        concatenated_source(reader, name, (name,), dtype)
        for name in sorted(reader.manifest.names("model"))
    ]


def concatenated_source(
    reader: CheckpointReader,
    name: str,
    stored_names: Sequence[str],
    dtype: torch.dtype | None,
    *,
    transposed: bool = False,
    place: tuple[int, ...] = (),
) -> TensorSource:
    """Tensors of the checkpoint concatenated along dimension 0, optionally in another dtype.

    Args:
        place: of the one that is wanted, where tensors are stacked in one.
    """
    missing = [one for one in stored_names if f"model/{one}" not in reader.manifest.tensors]
    if missing:
        raise RecordError(
            "checkpoint",
            f"{reader.path} holds no '{missing[0]}'",
            "Convert under the model's own names with --names same.",
        )

    def make() -> Tensor:
        parts = [read_at(reader, f"model/{one}", place) for one in stored_names]
        made = parts[0] if len(parts) == 1 else torch.cat(parts)
        made = made.t().contiguous() if transposed else made
        if dtype is None or not made.is_floating_point():
            return made
        return allocate_pages(made.shape, dtype).copy_(made)

    first, *others = [reader.manifest.tensors[f"model/{one}"] for one in stored_names]
    shape = first.shape[len(place) :]
    if others:
        shape = (sum(entry.shape[0] for entry in (first, *others)), *shape[1:])
    kind = DTYPES[first.dtype]
    if dtype is not None and kind.is_floating_point:
        kind = dtype
    return TensorSource(name, kind, shape[::-1] if transposed else shape, make)


def read_at(reader: CheckpointReader, name: str, place: tuple[int, ...]) -> Tensor:
    """A tensor, or the one at a place of a stack."""
    if not place:
        return reader.read(name)
    entry = reader.manifest.tensors[name]
    inside = entry.shape[len(place) :]
    start = (*place, *(0 for _ in inside))
    made = allocate_pages((*(1 for _ in place), *inside), DTYPES[entry.dtype])
    reader.read_into(name, TensorSlice(start, tuple(made.shape)), made)
    return made.view(inside)


def write_huggingface(
    sources: Iterable[TensorSource],
    folder: Path,
    config: Mapping[str, Any] | None,
    shard_bytes: int,
) -> list[Path]:
    """Write a folder that `from_pretrained` reads; it appears once it is complete."""
    groups = list(group_by_bytes(sources, shard_bytes))
    index: dict[str, str] = {}
    total = 0
    with temporary_folder(folder) as partial:
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
    sources: Iterable[TensorSource], folder: Path, settings: Mapping[str, Any]
) -> list[Path]:
    """Write an adapter's folder that peft reads; it appears once it is complete."""
    text = json.dumps({**settings, "inference_mode": True}, indent=2, sort_keys=True)
    with temporary_folder(folder) as partial:
        write_files({partial / "adapter_model.safetensors": list(sources)}, {"format": "pt"})
        write_text(partial / "adapter_config.json", text)
        partial.rename(folder)
    return sorted(folder.iterdir())


def group_by_bytes(sources: Iterable[TensorSource], limit: int) -> Iterator[list[TensorSource]]:
    """Group sources, in order, into files of at most `limit` bytes; a larger tensor is alone."""
    group: list[TensorSource] = []
    for source in sources:
        if group and sum(one.num_bytes for one in group) + source.num_bytes > limit:
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def write_state_dict(sources: Iterable[TensorSource], path: Path) -> None:
    """Write a file for `torch.load(path, weights_only=True)`.

    The tensors are first streamed to a temporary safetensors file, and torch saves them from its
    memory mapping, so that few are in memory at a time.
    """
    with temporary_folder(path) as partial:
        streamed, made = partial / "streamed", partial / "made"
        listed = list(sources)
        types = {source.name: source.dtype for source in listed}
        write_files({streamed: listed})
        with open_tensors(streamed) as file:
            saved = {name: from_pairs(file.tensor(name), types[name]) for name in sorted(types)}
            torch.save(saved, made)
        made.rename(path)


class HuggingfaceFolder:
    """The tensors in a Hugging Face model folder, in one safetensors file or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of = self._index()
        self.open: dict[str, TensorFile] = {}

    def _index(self) -> dict[str, str]:
        path = self.folder / INDEX
        if path.exists():
            try:
                weight_map = json.loads(path.read_text())["weight_map"]
                names = {str(name): str(file) for name, file in weight_map.items()}
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
        """A tensor that is a view of its memory-mapped file."""
        if name not in self.file_of:
            raise RecordError("checkpoint", f"{self.folder} holds no '{name}'", "See --names same.")
        file = self.file_of[name]
        if file not in self.open:
            with open_tensors(self.folder / file) as opened:
                self.open[file] = opened
        return self.open[file].tensor(name)


def write_checkpoint(
    sources: Iterable[TensorSource], root: Path, state: Mapping[str, Any], shard_bytes: int
) -> Path:
    """Write a checkpoint at step 0 whose model is these tensors."""
    final = checkpoint_folder(root, 0)
    part = RankFiles()
    with temporary_folder(final) as partial:
        for number, group in enumerate(group_by_bytes(sources, shard_bytes)):
            name = f"model-{number:05d}.safetensors"
            part.files |= {name: write_files({partial / name: group})[partial / name]}
            for one in group:
                stored = (StoredSlice(whole_slice(one.shape), name, one.name),)
                part.tensors[f"model/{one.name}"] = TensorEntry(
                    one.shape, DTYPE_CODES[one.dtype], stored
                )
        commit(partial, final, merge([part], state, 0))
    return final


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """A hidden folder next to `final` to write in; it is deleted on exit."""
    if final.exists():
        raise RecordError("out", f"{final} exists", "Name a new place.")
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
