"""Rung: compute in fewer bits, and keep the modules that need it in float32.

At build time `precision` casts what is stored, holds frozen matrices in the type that autocast
would give them, and marks what is kept in float32. At run time
`autocast_context` surrounds a forward pass: autocast where storage and compute types differ, and
the mode of float32 matmuls. That mode belongs to the whole process and is read as each matmul
starts, so a step also opens `float32_matmul_mode` around its backward; autocast must not be open
there, since the graph remembers the types that it chose.

Buffers in the state dict are cast like parameters. Other buffers are tables computed from constants
(rotary angles, masks), which would lose their precision in 8 bits of mantissa; they stay. So do
buffers of a type that no parameter has: their author chose it, and a plain loop would keep it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepladder.errors import PlanError, nearest
from stepladder.kernels import convert_linears, float8_problems
from stepladder.model.frozen_linears import narrow_frozen_linears
from stepladder.plan import Plan, Precision
from stepladder.plan.settled.limits import DeviceLimits
from stepladder.seam.modules import persistent_buffers
from stepladder.seam.pytree import look_up, tree_map

SIXTEEN_BITS = {torch.bfloat16, torch.float16}
MATRIX_MODES = {"fp32": "highest", "tf32": "high"}  # torch's words for how float32 is multiplied

Value = TypeVar("Value")


def precision(
    module: nn.Module,
    precision: Precision,
    keep: Sequence[str],
    device: torch.device,
    *,
    kernels: bool = False,
) -> None:
    """Cast what is stored; modules named in `keep` stay in float32 and compute in it."""
    kept = _outermost(_kept_modules(module, keep))
    if kept and precision.compute == "tf32":
        raise PlanError(
            "keep",
            f"{', '.join(keep)} cannot be kept: tf32 is a mode of the whole device",
            "Use bf16, which can keep single modules, or fp32 for all.",
        )
    store, work = _dtype(precision.store), _dtype(precision.work)
    if device.type == "cpu" and work == torch.bfloat16:
        _choose_bfloat16_kernels()
    full_width = {part for one in kept for part in one.modules()}
    if store != torch.float32:
        _check_ties(module, full_width)
    types = {parameter.dtype for parameter in module.parameters()}
    for part in module.modules():
        _cast(part, torch.float32 if part in full_width else store, types)
    if precision.compute == "fp8":
        convert_linears(module, skip=full_width, ours=kernels)
    if precision.mixed and precision.compute != "fp8":
        narrow_frozen_linears(module, work, skip=full_width)
    for one in kept:
        _compute_in_float32(one, device, answer=torch.float32 if precision.mixed else work)


def cast_parts(parts: Sequence[nn.Module], precision: Precision) -> None:
    """Cast what modules store, as those of the model that are not kept in float32."""
    types = {p.dtype for part in parts for p in part.parameters(recurse=False)}
    for part in parts:
        _cast(part, _dtype(precision.store), types)


def computes_in_float64(module: nn.Module) -> bool:
    """Whether a module is given in float64, which no plan stores."""
    return any(parameter.dtype == torch.float64 for parameter in module.parameters())


def explain_given_types(module: nn.Module, precision: Precision) -> list[str]:
    """What is to be said of a module that came in another type than it is kept in."""
    given = {parameter.dtype for parameter in module.parameters()}
    kept = _dtype(precision.store)
    said = []
    if torch.float64 in given:
        said.append(f"parameters came in float64 and are kept in {shown(kept)}: no plan keeps more")
    if narrow := sorted(shown(t) for t in given & SIXTEEN_BITS if kept == torch.float32):
        said.append(
            f"parameters came in {' and '.join(narrow)} and are kept in float32, as "
            f"'{precision}' keeps them; bf16-pure keeps 16 bits"
        )
    return said


def shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def keep_epsilon(module: nn.Module) -> None:
    """Have every RMSNorm of a float64 module go on with float64's eps where it was given none.

    torch then takes the type's own; float32's is 5e8 times as large, and rows near zero, such as
    those of an embedding that starts at zero, would be scaled otherwise.
    """
    for part in module.modules():
        if isinstance(part, nn.RMSNorm) and part.eps is None:
            part.eps = torch.finfo(torch.float64).eps


@torch.no_grad()
def _choose_bfloat16_kernels() -> None:
    """Have torch choose this process's kernels now and not in the first step.

    On an ARM processor without bf16 instructions (torch 2.13) the first matmul in bf16 fails inside
    oneDNN; torch prints a trace, computes it otherwise, and turns oneDNN off for all types. What
    ran before would have other roundings, so a resumed run would part from one never stopped.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = torch.ones(64, 64, dtype=torch.bfloat16)
        functional.linear(one, one, one[0])


def autocast_context(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass and its loss."""
    if precision.mixed:
        return torch.autocast(device.type, dtype=_dtype(precision.work))
    return float32_matmul_mode(precision, device)


def cast_inputs(precision: Precision, inputs: Any) -> Any:
    """Inputs in the module's compute type: autocast casts them itself, a module that is stored in
    16 bits does not."""
    return inputs if precision.mixed else _floats_to(inputs, _dtype(precision.work))


def accumulate_in_float32(module: nn.Module, *, able: bool = hasattr(Tensor, "grad_dtype")) -> None:
    """Accumulate the gradients of several micro-batches in float32."""
    if not able:  # setting an attribute torch does not know would change nothing
        problem = f"micro-batches add up in fp32, and torch {torch.__version__} adds in bf16"
        raise PlanError("precision", problem, "Use bf16, or leave micro out.")
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad_dtype = torch.float32


@contextmanager
def float32_matmul_mode(precision: Precision, device: torch.device) -> Iterator[None]:
    """A context in which float32 matmuls run as planned; restores the previous mode."""
    mode = MATRIX_MODES.get(precision.compute)
    if mode is None or device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn
    parts = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    # torch has an old and a new set of switches. The old ones set both kinds, but cannot be read
    # once somebody has used the new; the new can always be read.
    before = [part.fp32_precision for part in parts]
    old_products = _read(torch.get_float32_matmul_precision, otherwise="highest")
    old_cudnn = _read(lambda: cudnn.allow_tf32, otherwise=True)
    try:
        torch.set_float32_matmul_precision(mode)
        cudnn.allow_tf32 = mode == "high"
        yield
    finally:
        torch.set_float32_matmul_precision(old_products)
        cudnn.allow_tf32 = old_cudnn
        for part, value in zip(parts, before):
            part.fp32_precision = value


def device_limits(device: torch.device) -> DeviceLimits:
    """What the rules of legality ask of a device that is here."""
    return DeviceLimits(_device_name(device), device.type, _compute_types(device))


def missing_packages(plan: Plan, device: DeviceLimits) -> list[PlanError]:
    """What this installation lacks for a precision that the device has."""
    able = device.computes is not None and plan.precision.compute in device.computes
    lacking = able and plan.precision.compute == "fp8" and not plan.kernels
    return float8_problems() if lacking else []


def compute_types(capability: tuple[int, int]) -> frozenset[str]:
    """What the matrix units of an NVIDIA device of this compute capability multiply."""
    has = {"fp32", "fp16", "bf16"}  # before 8.0 torch emulates bf16, slower and as exact
    if capability >= (8, 0):
        has.add("tf32")
    if capability >= (8, 9):
        has.add("fp8")
    return frozenset(has)


def _compute_types(device: torch.device) -> frozenset[str]:
    if device.type != "cuda":
        return frozenset({"fp32", "fp16", "bf16"})
    if torch.version.hip:  # its capability counts AMD generations: 9.4 is the first with fp8
        capability = torch.cuda.get_device_capability(device)
        return compute_types((9, 0) if capability >= (9, 4) else (7, 0))
    return compute_types(torch.cuda.get_device_capability(device))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _kept_modules(module: nn.Module, keep: Iterable[str]) -> dict[str, nn.Module]:
    """Modules whose full name, or the end of it, is in `keep`."""
    names = {name: part for name, part in module.named_modules(remove_duplicate=False) if name}
    kept: dict[str, nn.Module] = {}
    for word in keep:
        matches = [name for name in names if f".{name}".endswith(f".{word}")]
        if not matches:
            ends = dict.fromkeys(name.rpartition(".")[2] for name in names)
            choices = names if "." in word else [end for end in ends if not end.isdigit()]
            owner = type(module).__name__
            raise PlanError("keep", f"'{word}' is not a module of {owner}", nearest(word, choices))
        kept.update((name, names[name]) for name in matches)
    return kept


def _outermost(kept: dict[str, nn.Module]) -> list[nn.Module]:
    """Each once, without those inside another: a block that is kept is in float32 throughout."""
    inside = {part for one in kept.values() for part in one.modules() if part is not one}
    return [one for one in dict.fromkeys(kept.values()) if one not in inside]


def _check_ties(module: nn.Module, full_width: set[nn.Module]) -> None:
    """One weight has one type, so whoever shares it is kept too."""
    owners: dict[nn.Parameter, str] = {}
    for name, part in module.named_modules():
        if part in full_width:
            owners.update(dict.fromkeys(part.parameters(recurse=False), name))
    for name, part in module.named_modules():
        shared = [owners[p] for p in part.parameters(recurse=False) if p in owners]
        if shared and part not in full_width:
            raise PlanError(
                "keep",
                f"'{shared[0]}' shares its weight with '{name}', which is not kept",
                f"Keep both: {shared[0]}, {name}.",
            )


@torch.no_grad()
def _cast(part: nn.Module, dtype: torch.dtype, types: Set[torch.dtype]) -> None:
    """Cast a module's own parameters and buffers.

    Args:
        types: of the whole module's parameters.
    """
    state = [buffer for _, buffer in persistent_buffers(part) if buffer.dtype in types]
    for tensor in (*part.parameters(recurse=False), *state):
        if tensor.is_floating_point() and tensor.dtype != dtype:
            tensor.data = tensor.data.to(dtype)


def _compute_in_float32(module: Any, device: torch.device, answer: torch.dtype) -> None:
    look_up()
    # Bound methods rather than a closure, so that a copy of the module runs its own weights.
    module._narrow_forward = vars(module).get("_narrow_forward", module.forward)
    module._full_width = device.type, answer
    module.forward = MethodType(_forward_in_float32, module)


def _forward_in_float32(module: Any, *args: Any, **kwargs: Any) -> Any:
    device_type, answer = module._full_width
    args, kwargs = _floats_to((args, kwargs), torch.float32)
    with torch.autocast(device_type, enabled=False):
        return _floats_to(module._narrow_forward(*args, **kwargs), answer)


def _floats_to(tree: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    return tree_map(cast, tree)


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)


def _read(read: Callable[[], Value], *, otherwise: Value) -> Value:
    try:
        return read()
    except RuntimeError:  # the old switches disagree with the new; nobody relies on them then
        return otherwise
