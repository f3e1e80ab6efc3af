"""What each precision may use here: matrix units, an emulation, or nothing, and why.

The hardware's generation says what should run; a small product of each type is then really tried,
and a type that raises is not available whatever its generation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepladder.seam.operators import scaled_mm

from .machine import Machine, Seen

# First generation with the matrix units, by compute capability and by AMD's architecture.
SINCE = {"tf32": (8, 0), "fp16": (7, 0), "bf16": (8, 0), "fp8": (8, 9)}
AMD = {
    "gfx90a": {"fp16", "bf16"},
    "gfx942": {"fp16", "bf16", "tf32", "fp8"},
    "gfx950": {"fp16", "bf16", "fp8"},
}
CPU_FLAGS = {
    "fp16": {"amx_fp16", "avx512_fp16", "fphp", "asimdhp"},
    "bf16": {"amx_bf16", "avx512_bf16", "bf16"},
}
INSTEAD = {
    "tf32": "no tf32 units, so float32 products stay float32",
    "fp16": "computed in float32 and rounded: no faster",
    "bf16": "computed in float32 and rounded: no faster",
    "fp8": "no fp8 units",
}
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
ONLY_IN_UNITS = {"tf32", "fp8"}  # nothing computes these where there is no unit for them


@dataclass(frozen=True, slots=True)
class Support:
    precision: str
    answer: str  # yes, emulated or no
    because: str
    peak: float | None  # FLOP/s from the device table; None is unknown


def support(machine: Machine) -> tuple[Support, ...]:
    """Say what each precision may use on this machine's first device."""
    return tuple(_support(name, machine) for name in PRECISIONS)


def _support(precision: str, machine: Machine) -> Support:
    seen = machine.seen[0] if machine.seen else None
    answer, because = expected(precision, seen, machine.cpu_flags)
    refusal = try_product(precision, "cuda" if seen else "cpu") if answer != "no" else None
    if refusal:
        return Support(precision, "no", f"tried, and torch refused: {refusal}", None)
    peak = machine.cluster.device.peak(precision) if answer == "yes" else None
    return Support(precision, answer, because, peak)


def expected(precision: str, seen: Seen | None, cpu_flags: frozenset[str]) -> tuple[str, str]:
    """Answer from the generation of the hardware alone."""
    if precision == "fp32":
        return "yes", "every device computes it"
    if seen is None:
        return _on_processor(precision, cpu_flags)
    has_units, generation = has_matrix_units(precision, seen.architecture)
    if has_units:
        return "yes", f"matrix units of {generation}"
    answer = "no" if precision in ONLY_IN_UNITS else "emulated"
    return answer, f"{INSTEAD[precision]} ({generation})"


def has_matrix_units(precision: str, architecture: str) -> tuple[bool, str]:
    if architecture.startswith("gfx"):
        return precision in AMD.get(architecture, set()), architecture
    major, minor = map(int, architecture.split("."))
    return (major, minor) >= SINCE[precision], f"compute capability {architecture}"


def _on_processor(precision: str, flags: frozenset[str]) -> tuple[str, str]:
    if precision == "tf32":
        return "no", "a processor has no tf32; its float32 is exact"
    if precision == "fp8":
        return "emulated", "a reference kernel, far slower than float32: only to try things out"
    used = sorted(CPU_FLAGS[precision] & flags)
    if used:
        return "yes", f"processor has {', '.join(used)}"
    return "emulated", INSTEAD[precision]


def try_product(precision: str, device: str) -> str | None:
    """Multiply two small matrices in that type; return what torch says if it cannot."""
    try:
        _product(precision, device)
    except Exception as error:  # torch refuses in many ways, assertions among them
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def _product(precision: str, device: str) -> torch.Tensor:
    if precision == "fp8":
        left = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        return scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    types = {"fp16": torch.float16, "bf16": torch.bfloat16}
    left = torch.ones(16, 16, device=device, dtype=types.get(precision, torch.float32))
    return left @ left
