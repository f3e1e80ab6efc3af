"""Hugging Face models from local files: built from a config, with or without weights.

The transformers library builds the module and reads the weights. Nothing is downloaded, and no code
that comes with a model is run. Weights that lack a tensor are refused, because it would start from
random values among trained ones. So are weights with other tensors, or quantised ones, because they
belong to another model.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, nearest

AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
)  # if the config names no class
FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them
LENGTHS = ("max_position_embeddings", "n_positions")


def is_pretrained_path(text: str) -> bool:
    """Whether the text is a config.json, or a folder.

    A folder named by a bare word counts only with a config.json in it: it may be a preset's name.
    """
    path = Path(text).expanduser()
    folder = path.is_dir() and ("/" in text or (path / "config.json").is_file())
    return text.endswith(".json") or folder


def build_pretrained(
    text: str,
    *,
    weights: str = "",
    seed: int = 0,
    sequence: int | None = None,
    dropout: float = 0.0,
    device: str | torch.device | None = None,
) -> nn.Module:
    """Build the model that a config describes, in float32.

    Args:
        weights: a folder of safetensors to start from; empty: random values drawn from `seed`.
        device: "meta" builds it without values.
    """
    config = read_huggingface_config(text)
    check_length(text, config, sequence)
    if dropout:
        remedy = "Set it there, under the name this model has for it, and leave model.dropout out."
        raise PlanError("model.dropout", f"a config says its own, as {text} does", remedy)
    kind = model_class(text, config)
    if weights:
        return load_weights(kind, config, weights)
    home = torch.device(device) if device is not None else torch.get_default_device()
    with torch.random.fork_rng(devices=[]), home:
        torch.manual_seed(seed)
        return build_from_config(text, kind, config)


def build_from_config(text: str, kind: Any, config: Any) -> nn.Module:
    try:
        return kind._from_config(config, dtype=torch.float32)
    except Exception as broken:
        raise ModelError(
            "model", f"{text} cannot be built ({one_line(broken)})", "Mend it."
        ) from broken


def read_huggingface_config(text: str) -> Any:
    """Read a config.json, or the one in a folder."""
    path = Path(text).expanduser()
    path = path / "config.json" if path.is_dir() else path
    remedy = "Name a config.json of a Hugging Face model, or a folder with one."
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as broken:
        raise PlanError("model", f"{path} cannot be read ({one_line(broken)})", remedy) from broken
    word = table.get("model_type") if isinstance(table, dict) else None
    known = import_transformers().CONFIG_MAPPING
    if word not in known:
        near = nearest(str(word), list(known.keys())) if word else remedy
        way_out = near if near.startswith("Did") else remedy  # not the list of hundreds
        raise PlanError("model", f"{path} is of no known model_type ({word})", way_out)
    try:
        config = known[word].from_dict(table)
    except Exception as broken:
        raise PlanError(
            "model", f"{path} is no config of a {word} ({one_line(broken)})", remedy
        ) from (broken)
    if getattr(config, "num_hidden_layers", 1) < 1:
        problem = f"{path} has {config.num_hidden_layers} layers (num_hidden_layers)"
        raise PlanError("model", problem, "Write 1 or more.")
    return config


def check_length(text: str, config: Any, sequence: int | None) -> None:
    longest = next((n for name in LENGTHS if isinstance(n := getattr(config, name, None), int)), 0)
    if sequence is not None and longest and sequence > longest:
        problem = f"{sequence} tokens, and {text} is made for {longest}"
        raise PlanError("model.sequence", problem, f"Use {longest} or fewer.")


def model_class(text: str, config: Any) -> Any:
    """The class that the config names, else the one for language modelling or classification."""
    library = import_transformers()
    named = (config.architectures or [None])[0]
    if named is not None:
        found = getattr(library, named, None)
        if found is None:
            problem = f"{text} names the class '{named}', which transformers does not have"
            raise PlanError("model", problem, "Update transformers, or leave architectures out.")
        return found
    for name in AUTO_CLASSES:
        known = getattr(
            library, name
        )._model_mapping  # not `from_config`, which may run a model's own code
        if type(config) in known:
            if name == AUTO_CLASSES[0] and getattr(config, "is_decoder", True) is False:
                problem = f"a {config.model_type} sees what comes after each token ({text})"
                raise PlanError("model", problem, 'Write "is_decoder": true to predict the next.')
            return known[type(config)]
    problem = f"{text} names no class, and a {config.model_type} is no language model or classifier"
    raise PlanError("model", problem, 'Name one in it: "architectures": ["…"].')


def load_weights(kind: Any, config: Any, folder: str) -> nn.Module:
    """Build the model with a folder's weights; every tensor must be there."""
    place = Path(folder).expanduser()
    if not any(place.glob("*.safetensors")):
        problem = f"{folder} holds no safetensors"
        raise ModelError("model.weights", problem, "Name a folder that save_pretrained wrote.")
    check_dtypes(place, folder)
    try:
        module, found = kind.from_pretrained(
            place, config=config, dtype=torch.float32, use_safetensors=True,
            local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except Exception as broken:
        problem = f"{folder} cannot be loaded ({one_line(broken)})"
        raise ModelError("model.weights", problem, "See whether it is of this model.") from broken
    check_tensors(folder, found)
    return module.train()


def check_tensors(folder: str, found: dict[str, Any]) -> None:
    """Raise if the weights have other tensors than the model."""
    for key, theirs, ours in sorted(found["mismatched_keys"], key=str):
        problem = f"{folder} has '{key}' of shape {tuple(theirs)}, and this model of {tuple(ours)}"
        raise ModelError("model.weights", problem, "Name the folder of this very model.")
    for kind, verb in (("missing_keys", "lacks"), ("unexpected_keys", "has, beyond this model's,")):
        if keys := sorted(found[kind]):
            of_this = " of this model" * (kind == "missing_keys")
            problem = f"{folder} {verb} {len(keys)} tensors{of_this}, such as '{keys[0]}'"
            raise ModelError("model.weights", problem, "Name the folder of this very model.")


def check_dtypes(place: Path, folder: str) -> None:
    """Raise if weights are integers or 8-bit floats, which need scales."""
    opened = import_module("safetensors").safe_open
    for path in sorted(place.glob("*.safetensors")):
        try:
            with opened(path, "pt") as file:
                names = file.keys()  # it cannot be iterated itself
                kinds = {key: file.get_slice(key).get_dtype() for key in names}
        except Exception as broken:
            problem = f"{folder} cannot be loaded ({one_line(broken)})"
            raise ModelError("model.weights", problem, "Write it again.") from broken
        for key, kind in kinds.items():
            if key.endswith("weight") and kind not in FLOATS:
                problem = f"{folder} holds '{key}' in {kind}, which are not whole weights"
                raise ModelError("model.weights", problem, "Name one in 16 or 32 bits.")


def import_transformers() -> Any:
    """The transformers library, imported only when a Hugging Face model is used."""
    try:
        return import_module("transformers")
    except ImportError as missing:
        problem = "a Hugging Face model needs the package 'transformers', which is not installed"
        raise ModelError("model", problem, "Install it: pip install 'stepladder[hf]'") from missing


def one_line(error: Exception) -> str:
    """The error's message in one line, or its type if it has none."""
    words = " ".join(str(error).split())
    return f"{words[:199]}…" if len(words) > 200 else words or type(error).__name__
