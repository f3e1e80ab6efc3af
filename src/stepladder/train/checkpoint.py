"""A checkpoint: a folder that is either whole or absent.

    run/step-000500/model.safetensors       parameters and buffers, tied ones once
                    optimizer.safetensors   the optimizer's state, by parameter name
                    manifest.json           step, position, plan, scale, a hash of each file
    run/latest                              the name of the newest whole one

Everything is written under a temporary name, forced to the disk and renamed last, so a run killed
at any moment leaves the older checkpoints as they were. There is no pickle: loading cannot run
code. Random generators are not saved because none carries over: see world.seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stepladder.errors import RecordError
from stepladder.version import VERSION

from .engine import Engine

KEPT = 2  # whole checkpoints that stay
LATEST, MANIFEST = "latest", "manifest.json"


def save(run: Engine, folder: str | Path) -> Path:
    """Write the run's state; the folder of the new checkpoint comes back."""
    root = Path(folder)
    final = root / f"step-{run.index:06d}"
    partial = root / f".{final.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write_file(partial / "model.safetensors", model_tensors(run))
        write_file(partial / "optimizer.safetensors", optimizer_tensors(run))
        hashes = {path.name: hash_file(path) for path in sorted(partial.iterdir())}
        write_text(partial / MANIFEST, json.dumps({**manifest(run), "files": hashes}, indent=2))
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        write_text(root / f".{LATEST}", final.name)
        (root / f".{LATEST}").rename(root / LATEST)
    except OSError as refused:
        raise RecordError(
            "checkpoint",
            f"{final} cannot be written ({refused.strerror})",
            "Free some space or name another folder; older checkpoints are untouched.",
        ) from refused
    retire(root)
    return final


def load(run: Engine, folder: str | Path) -> Path:
    """Put the run where a checkpoint left off; a run folder means its latest."""
    path = find(folder)
    found = verify(path)
    tensors = untie(run, load_file(path / "model.safetensors"))
    check_same_model(path, tensors, run.module.state_dict())
    run.module.load_state_dict(tensors)
    put_optimizer(run, load_file(path / "optimizer.safetensors"))
    run.index, run.position, run.seed = found["step"], found["position"], found["seed"]
    run.scale.load_state_dict(found["loss_scale"])
    run.clock.restart(run.index)
    return path


def check_same_model(
    path: Path, saved: dict[str, torch.Tensor], here: dict[str, torch.Tensor]
) -> None:
    """Refuse another model's checkpoint before any of it is copied."""
    for name in sorted({*saved, *here}):
        shapes = [tuple(side[name].shape) if name in side else "absent" for side in (saved, here)]
        if shapes[0] != shapes[1]:
            raise RecordError(
                "checkpoint",
                f"{path} is of another model: '{name}' is {shapes[0]} there and {shapes[1]} here",
                "Build the same model.",
            )


def verify(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written."""
    try:
        found = json.loads((path / MANIFEST).read_text())
        if any(Path(name).name != name for name in found["files"]):
            raise ValueError("a path in its manifest leads out of it")
        wrong = [name for name, was in found["files"].items() if hash_file(path / name) != was]
    except (OSError, ValueError, KeyError) as broken:
        raise RecordError(
            "checkpoint", f"{path} is not a whole checkpoint ({broken})", "Use an older one."
        ) from broken
    if wrong:
        raise RecordError(
            "checkpoint", f"{path / wrong[0]} is not what was written", "Use an older one."
        )
    return found


def find(folder: str | Path) -> Path:
    root = Path(folder)
    if (root / MANIFEST).exists():
        return root
    latest = root / LATEST
    if not latest.exists():
        raise RecordError("checkpoint", f"{root} holds none", "Name a folder that a run saved to.")
    return root / Path(latest.read_text().strip()).name


def manifest(run: Engine) -> dict[str, Any]:
    return {
        "format": 1,
        "step": run.index,
        "position": run.position,
        "seed": run.seed,
        "plan": str(run.plan),
        "loss_scale": run.scale.state_dict(),
        "versions": {"stepladder": VERSION, "torch": torch.__version__},
    }


def model_tensors(run: Engine) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; a tied matrix stands once, under its first name."""
    first: dict[int, str] = {}
    tensors = {}
    for name, tensor in run.module.state_dict().items():
        if first.setdefault(tensor.data_ptr() if tensor.numel() else id(tensor), name) == name:
            tensors[name] = tensor.detach().contiguous()
    return tensors


def untie(run: Engine, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under every name the module knows them by."""
    names: dict[int, str] = {}
    for name, tensor in run.module.state_dict().items():
        key = tensor.data_ptr() if tensor.numel() else id(tensor)
        kept = names.setdefault(key, name)
        if kept in tensors:
            tensors[name] = tensors[kept]
    return tensors


def optimizer_tensors(run: Engine) -> dict[str, torch.Tensor]:
    return {
        f"{piece.name}:{key}": value.detach().contiguous()
        for piece in run.climbed.pieces
        for key, value in run.optimizer.state.get(piece.held, {}).items()
        if isinstance(value, torch.Tensor)
    }


def put_optimizer(run: Engine, tensors: dict[str, torch.Tensor]) -> None:
    parameters = {piece.name: piece.held for piece in run.climbed.pieces}
    on_device = bool(run.optimizer.defaults.get("fused"))  # else torch reads `step` on the host
    run.optimizer.state.clear()
    for label, value in tensors.items():
        name, _, key = label.rpartition(":")
        parameter = parameters[name]
        home = parameter.device if on_device or key != "step" else torch.device("cpu")
        run.optimizer.state[parameter][key] = value.to(home)


def write_file(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path)
    with path.open("rb") as written:
        os.fsync(written.fileno())


def write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def retire(root: Path) -> None:
    """Remove all but the newest whole checkpoints."""
    whole = sorted(path for path in root.glob("step-*") if (path / MANIFEST).exists())
    for path in whole[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
