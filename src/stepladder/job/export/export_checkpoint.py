"""A checkpoint's model in other programs' formats; every byte is checked before any is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from stepladder.checkpoint import (
    CheckpointReader,
    Manifest,
    TensorSource,
    find_checkpoints,
    verify_checkpoint,
)
from stepladder.checkpoint.convert import (
    SHARD_BYTES,
    HuggingfaceFolder,
    concatenated_source,
    model_tensors,
    write_adapter,
    write_huggingface,
    write_state_dict,
)
from stepladder.errors import RecordError
from stepladder.model.huggingface.saved_settings import adapter_key
from stepladder.model.huggingface.tensor_names import huggingface_config, huggingface_tensors
from stepladder.workload import Shape

from .merge_adapters import merged_tensors

Format = Literal["huggingface", "adapters", "state_dict"]
Progress = Callable[[Iterable[TensorSource], str], Iterable[TensorSource]]
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.*",
    "merges.txt",
    "generation_config.json",
)


def without_progress(items: Iterable[TensorSource], what: str) -> Iterable[TensorSource]:
    return items


def export_checkpoint(
    run: Path,
    out: Path,
    *,
    to: Format = "huggingface",
    dtype: torch.dtype | None = None,
    own_names: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = without_progress,
) -> list[Path]:
    """Write the latest checkpoint of a run, and return the files.

    Args:
        to: huggingface, a folder that `from_pretrained` reads, with adapters merged; adapters, a
            folder that peft reads; state_dict, a file for `torch.load`.
        own_names: a built-in model's tensors keep the names that they have here.
    """
    path = next(find_checkpoints(run))
    manifest = verify_checkpoint(path)
    with CheckpointReader(path, manifest) as reader:
        if to == "adapters":
            return export_adapters(reader, out, dtype, progress)
        if to == "huggingface" and manifest.state.get("adapters"):
            sources = progress(merged_tensors(reader, dtype), "Merging")
            config = with_dtype(manifest.state.get("config"), dtype)
            return write_huggingface(sources, out, config, shard_bytes)
        shape = None if own_names else built_in_shape(manifest)
        sources = progress(sources_of(reader, shape, dtype), "Converting")
        if to == "state_dict":
            write_state_dict(sources, out)
            return [out]
        config = huggingface_config(shape) if shape else manifest.state.get("config")
        return write_huggingface(sources, out, with_dtype(config, dtype), shard_bytes)


def with_dtype(config: dict[str, Any] | None, dtype: torch.dtype | None) -> dict[str, Any] | None:
    """The config with the type of the weights beside it, which `from_pretrained` asks it for."""
    if config is None or dtype is None:
        return config
    stated = {key: value for key, value in config.items() if key != "torch_dtype"}
    return {**stated, "dtype": str(dtype).removeprefix("torch.")}


def export_adapters(
    reader: CheckpointReader, folder: Path, dtype: torch.dtype | None, progress: Progress
) -> list[Path]:
    """Each adapter in peft's layout: the one named default in the folder, others below it."""
    adapters: dict[str, Any] = reader.manifest.state.get("adapters") or {}
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
    reader: CheckpointReader, shape: Shape | None, dtype: torch.dtype | None
) -> list[TensorSource]:
    if shape is None:
        return model_tensors(reader, dtype)
    return [
        concatenated_source(
            reader, one.name, one.stored_names, dtype, transposed=one.transposed, place=one.place
        )
        for one in huggingface_tensors(shape)
    ]


def built_in_shape(manifest: Manifest) -> Shape | None:
    """The shape of a built-in language model, which the run recorded."""
    recorded = manifest.state.get("shape")
    try:
        return Shape(**recorded) if isinstance(recorded, dict) else None
    except TypeError:
        return None


def weights_dtype(folder: Path) -> torch.dtype | None:
    """The floating-point type that most of a folder's weights are stored in."""
    files = HuggingfaceFolder(folder)
    found = [files.tensor(name).dtype for name in files.file_of]
    floats = [one for one in found if one.is_floating_point]
    return max(set(floats), key=floats.count, default=None)


def copy_tokenizer(start: Path, out: Path) -> list[Path]:
    """Copy what belongs to the tokenizer from one model's folder to another."""
    found = sorted({path for kind in TOKENIZER_FILES for path in start.glob(kind)})
    return [Path(shutil.copy(path, out / path.name)) for path in found if path.is_file()]
