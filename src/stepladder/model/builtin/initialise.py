"""Initial values: each parameter is drawn by its name, so every rank and layout draws the same.

[Note: one draw per name] A generator is seeded by (seed, parameter name) and always draws the whole
parameter on the CPU in float32; each rank then keeps its slice in its own dtype. So all layouts and
devices start from the same model, without communication. The price: every rank also draws what it
does not keep.

Matrices and embeddings are normal(0, 0.02), convolutions normal by fan-out, norms one, biases zero.
A module's method `initial(name)` overrides this for its parameters: it returns a standard
deviation, or None for the default. A module with buffers recomputes them in `reset_buffers()`.
"""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stepladder.errors import ModelError
from stepladder.model.anatomy.find_anatomy import find_anatomy

WRAPPER_PREFIXES = ("_orig_mod.", "_checkpoint_wrapped_module.")  # added by torch's wrappers
RESIDUAL = (  # they write to the residual stream
    *("attention.out.weight", "mlp.down.weight"),
    *("mlp.experts.down", "mlp.shared.down.weight"),
)
CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


@torch.no_grad()
def initialise(module: nn.Module, seed: int = 0) -> None:
    """Set every parameter and buffer to its initial value, on its current device."""
    retie(module)
    anatomy = find_anatomy(module)
    shared = {f"{anatomy.head}.weight": f"{anatomy.embedding}.weight"} if anatomy.tied else {}
    for name, parameter in module.named_parameters():
        center, spread = distribution_of(module, name, parameter)
        value = torch.full(parameter.shape, center, dtype=torch.float32, device="cpu")
        if spread:  # a tied head draws the embedding's numbers, even if that is on another stage
            value.normal_(center, spread, generator=generator_of(seed, shared.get(name, name)))
        copy_slice(value, parameter)
    for name, part in module.named_modules():
        reset_buffers(name, part)


def retie(module: nn.Module) -> None:
    """Tie shared parameters again, since `to_empty` gives each name its own tensor."""
    tie = getattr(module, "tie", None) or getattr(module, "tie_weights", None)
    if tie is not None:
        tie()


def generator_of(seed: int, name: str) -> torch.Generator:
    for wrapping in WRAPPER_PREFIXES:
        name = name.replace(wrapping, "")
    digest = sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))


def distribution_of(module: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    """Mean and standard deviation: from the innermost `initial`, else by the module's type."""
    *path, last = name.split(".")
    owners = [module]
    for word in path:
        owners.append(owners[-1].get_submodule(word))
    for depth in reversed(range(len(owners))):
        initial = getattr(owners[depth], "initial", None)
        spread = initial(".".join([*path, last][depth:])) if callable(initial) else None
        if spread is not None:
            return 0.0, spread
    return distribution_by_type(owners[-1], name, parameter)


def residual_std(name: str, layers: int) -> float | None:
    """GPT-2's standard deviation for weights that write to the residual stream."""
    return 0.02 * (2 * layers) ** -0.5 if name.endswith(RESIDUAL) else None


def distribution_by_type(owner: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    last = name.rpartition(".")[2]
    if "bias" in last:
        return 0.0, 0.0
    if "Norm" in type(owner).__name__:
        return 1.0, 0.0
    if isinstance(owner, CONVOLUTIONS):  # He et al. 2015, for relu
        return 0.0, (2 / (owner.out_channels * parameter[0, 0].numel() / owner.groups)) ** 0.5
    if parameter.dim() > 1:
        return 0.0, 0.02
    raise ModelError(
        name,
        f"a {type(owner).__name__} has no rule for a first value of shape {tuple(parameter.shape)}",
        "Give that class a method `initial(name)` that returns its standard deviation.",
    )


def copy_slice(value: Tensor, parameter: Tensor) -> None:
    """Copy the whole value, or this rank's slice of it, without communication."""
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        value = value.to(parameter.device)
        value = distribute_tensor(value, mesh, placements, src_data_rank=None)
    parameter.copy_(value)


def reset_buffers(name: str, part: nn.Module) -> None:
    own = [buffer for buffer, _ in part.named_buffers(recurse=False)]
    reset = getattr(part, "reset_buffers", None) or getattr(part, "reset_running_stats", None)
    if reset is not None:
        reset()
    elif own:
        raise ModelError(
            f"{name}.{own[0]}".lstrip("."),
            f"a {type(part).__name__} has no rule to rebuild its buffers",
            "Give that class a method `reset_buffers()`.",
        )
