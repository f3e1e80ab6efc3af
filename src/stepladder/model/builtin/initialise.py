"""First values: each parameter drawn from its own name, so every rank and layout draws the same.

[Note: one draw per name] A generator is seeded by (seed, parameter name) and always draws the whole
parameter on the CPU in float32; the owner then keeps its slice in its own type. Stages, shards,
cuts and devices therefore start from one and the same model, without sending anything. The price:
every rank draws what it does not keep.

Matrices and tables are normal(0, 0.02), convolutions normal by fan-out, norms one, biases zero. A
module with a method `initial(name)` answers first for everything below it: a standard deviation, or
None to leave it to the rule. A module with buffers rebuilds them in `reset_buffers()`.
"""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from stepladder.errors import ModelError
from stepladder.model.anatomy.find_anatomy import find_anatomy

WRAPPINGS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what torch's wrappers add to a name
RESIDUAL = ("attention.out.weight", "mlp.down.weight")  # what each half of a block ends in
CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


@torch.no_grad()
def initialise(module: nn.Module, seed: int = 0) -> None:
    """Give every parameter and buffer its first value, wherever they now live."""
    tie_again(module)
    anatomy = find_anatomy(module)
    shared = {f"{anatomy.head}.weight": f"{anatomy.embedding}.weight"} if anatomy.tied else {}
    for name, parameter in module.named_parameters():
        center, spread = draw_of(module, name, parameter)
        value = torch.full(parameter.shape, center, dtype=torch.float32, device="cpu")
        if spread:  # a tied head draws the embedding's numbers, though that lives on another stage
            value.normal_(center, spread, generator=generator_of(seed, shared.get(name, name)))
        place(value, parameter)
    for name, part in module.named_modules():
        reset_buffers(name, part)


def tie_again(module: nn.Module) -> None:
    """`to_empty` gives each name a tensor of its own, so what was shared must be shared again."""
    tie = getattr(module, "tie", None) or getattr(module, "tie_weights", None)
    if tie is not None:
        tie()


def generator_of(seed: int, name: str) -> torch.Generator:
    for wrapping in WRAPPINGS:
        name = name.replace(wrapping, "")
    digest = sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))


def draw_of(module: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
    """Mean and standard deviation: the innermost `initial` that answers, else the type's rule."""
    *path, last = name.split(".")
    owners = [module]
    for word in path:
        owners.append(owners[-1].get_submodule(word))
    for depth in reversed(range(len(owners))):
        initial = getattr(owners[depth], "initial", None)
        spread = initial(".".join([*path, last][depth:])) if callable(initial) else None
        if spread is not None:
            return 0.0, spread
    return draw_by_type(owners[-1], name, parameter)


def residual_spread(name: str, layers: int) -> float | None:
    """GPT-2's rule for what adds to the residual stream, so that the sum of all stays near one."""
    return 0.02 * (2 * layers) ** -0.5 if name.endswith(RESIDUAL) else None


def draw_by_type(owner: nn.Module, name: str, parameter: Tensor) -> tuple[float, float]:
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


def place(value: Tensor, parameter: Tensor) -> None:
    """Copy the whole value, or this rank's slice of it, without a word to other ranks."""
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
