"""Which precisions this machine supports: with matrix units, emulated, or not at all, and why.

The hardware's generation says what should run; a small matmul of each type is then tried, and a
type that raises is not supported whatever the generation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepladder.seam.operators import scaled_mm

from .machine import Accelerator, DetectedMachine

# First generation with the matrix units, by compute capability and by AMD's architecture.
FIRST_CAPABILITY = {"tf32": (8, 0), "fp16": (7, 0), "bf16": (8, 0), "fp8": (8, 9)}
AMD = {
    "gfx90a": {"fp16", "bf16"},
    "gfx942": {"fp16", "bf16", "tf32", "fp8"},
    "gfx950": {"fp16", "bf16", "fp8"},
}
CPU_FLAGS = {
    "fp16": {"amx_fp16", "avx512_fp16", "fphp", "asimdhp"},
    "bf16": {"amx_bf16", "avx512_bf16", "bf16"},
}
WITHOUT_UNITS = {
    "tf32": "no tf32 units, so float32 products stay float32",
    "fp16": "computed in float32 and rounded: no faster",
    "bf16": "computed in float32 and rounded: no faster",
    "fp8": "no fp8 units",
}
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
NEEDS_UNITS = {"tf32", "fp8"}  # not emulated without matrix units


@dataclass(frozen=True, slots=True)
class PrecisionSupport:
    """Whether one precision is supported, and why."""

    precision: str
    answer: str  # yes, emulated or no
    because: str
    peak: float | None  # FLOP/s from the device table; None is unknown


def precision_support(machine: DetectedMachine) -> tuple[PrecisionSupport, ...]:
    """The support for each precision on this machine's first device."""
    return tuple(_support(name, machine) for name in PRECISIONS)


def _support(precision: str, machine: DetectedMachine) -> PrecisionSupport:
    seen = machine.seen[0] if machine.seen else None
    answer, because = expected(precision, seen, machine.cpu_flags)
    refusal = try_matmul(precision, "cuda" if seen else "cpu") if answer != "no" else None
    if refusal:
        return PrecisionSupport(precision, "no", f"tried, and torch refused: {refusal}", None)
    peak = machine.cluster.device.peak(precision) if answer == "yes" else None
    return PrecisionSupport(precision, answer, because, peak)


def expected(
    precision: str, seen: Accelerator | None, cpu_flags: frozenset[str]
) -> tuple[str, str]:
    """The support to expect from the hardware's generation alone."""
    if precision == "fp32":
        return "yes", "every device computes it"
    if seen is None:
        return _on_processor(precision, cpu_flags)
    has_units, generation = has_matrix_units(precision, seen.architecture)
    if has_units:
        return "yes", f"matrix units of {generation}"
    answer = "no" if precision in NEEDS_UNITS else "emulated"
    return answer, f"{WITHOUT_UNITS[precision]} ({generation})"


def has_matrix_units(precision: str, architecture: str) -> tuple[bool, str]:
    if architecture.startswith("gfx"):
        return precision in AMD.get(architecture, set()), architecture
    major, minor = map(int, architecture.split("."))
    return (major, minor) >= FIRST_CAPABILITY[precision], f"compute capability {architecture}"


def _on_processor(precision: str, flags: frozenset[str]) -> tuple[str, str]:
    if precision == "tf32":
        return "no", "a processor has no tf32; its float32 is exact"
    if precision == "fp8":
        return "emulated", "a reference kernel, far slower than float32: only to try things out"
    used = sorted(CPU_FLAGS[precision] & flags)
    if used:
        return "yes", f"processor has {', '.join(used)}"
    return "emulated", WITHOUT_UNITS[precision]


def try_matmul(precision: str, device: str) -> str | None:
    """Multiply two small matrices in that type; return torch's error if it cannot."""
    try:
        _matmul(precision, device)
    except Exception as error:  # torch refuses in many ways, assertions among them
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None


def _matmul(precision: str, device: str) -> torch.Tensor:
    if precision == "fp8":
        left = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        return scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    types = {"fp16": torch.float16, "bf16": torch.bfloat16}
    left = torch.ones(16, 16, device=device, dtype=types.get(precision, torch.float32))
    return left @ left
