"""Legality rules: what a plan requires of a device. Each rule returns the problem or None."""

from __future__ import annotations

from stepladder.errors import PlanError
from stepladder.plan.options import GIB
from stepladder.plan.plan import Plan

from .limits import DeviceLimits


def device_multiplies(plan: Plan, device: DeviceLimits) -> PlanError | None:
    if device.computes is None or plan.precision.compute in device.computes:
        return None
    able = [name for name in ("bf16", "fp16", "tf32", "fp32") if name in device.computes]
    problem = f"{plan.precision} needs matrix units this device ({device.name}) does not have"
    return PlanError("precision", problem, f"{' and '.join(able[:2])} run on it.")


def flash_needs_device(plan: Plan, device: DeviceLimits) -> PlanError | None:
    if plan.attention != "flash" or device.has_flash:
        return None
    problem = f"the flash kernel does not run on {device.name}"
    return PlanError("attention", problem, "Use attention=auto.")


def offload_needs_device(plan: Plan, device: DeviceLimits) -> PlanError | None:
    if not plan.offload or device.has_own_memory:
        return None
    problem = f"{', '.join(plan.offload)} already in host memory on {device.name}"
    return PlanError("offload", problem, "Leave it out.")


def ceiling_below_device(plan: Plan, device: DeviceLimits) -> PlanError | None:
    ceiling, whole = plan.memory_bytes, device.memory_bytes
    if ceiling is None or whole is None or ceiling <= whole:
        return None
    problem = f"a ceiling of {ceiling / GIB:.0f} GiB on a device that has {whole / GIB:.0f}"
    return PlanError("memory", problem, "Lower it, or leave it out.")


def device_records_graphs(plan: Plan, device: DeviceLimits) -> PlanError | None:
    if not plan.graphs or device.on_gpu:
        return None
    problem = f"{device.kind} records none; CUDA devices do"
    return PlanError("graphs", problem, "Leave graphs out.")
