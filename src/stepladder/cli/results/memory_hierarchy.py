"""`stepladder doctor --device`: where a device keeps numbers, and how many blocks fit."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from stepladder.cli.results.tables import as_json, digits, percent, size, table
from stepladder.errors import PlanError
from stepladder.hardware import Device, find_device
from stepladder.hardware.chips import CHIPS, WARP, Chip, find_chip
from stepladder.hardware.memory_levels import MemoryLevel, memory_levels
from stepladder.hardware.occupancy import Block, Occupancy, occupancy

USUAL_BLOCKS = tuple(
    Block.parse(words)
    for words in (
        "threads=32 registers=32",
        "threads=256 registers=32",
        "threads=256 registers=64",
        "threads=256 registers=128",
        "threads=256 registers=255",
        "threads=256 registers=32 shared=48KiB",
        "threads=256 registers=32 shared=100KiB",
    )
)


def show_device(options: argparse.Namespace) -> int:
    """Print a device's memory hierarchy and occupancy; of this machine's, if that is asked for."""
    device, chip, levels = look_up(options.device_name)
    blocks = [Block.parse(options.block)] if options.block else list(USUAL_BLOCKS)
    if chip is None and options.block:
        raise PlanError("block", f"the multiprocessors of {device} are unknown",
                        f"Name another device: {', '.join(CHIPS)}.")  # fmt: skip
    found = [occupancy(block, chip.multiprocessor) for block in blocks] if chip else []
    if options.json:
        as_json(report(device, chip, levels, found))
        return 0
    draw_levels(device, levels)
    if chip:
        draw_chip(device, chip)
        draw_occupancy(device, found)
    else:
        print(f"Multiprocessors are known of {', '.join(CHIPS)}.")
    return 0


def look_up(name: str) -> tuple[Device, Chip | None, list[MemoryLevel]]:
    if name != "here":
        device = find_device(name)
        chip = find_chip(device)
        return device, chip, memory_levels(device, chip)
    from stepladder.world.machine.detect_levels import detect_levels

    return detect_levels()


def report(
    device: Device, chip: Chip | None, levels: list[MemoryLevel], found: list[Occupancy]
) -> dict[str, Any]:
    rows = [{**asdict(level), "flops_per_byte": level.balance(device)} for level in levels]
    blocks = [{**asdict(one), "blocks": one.blocks, "warps": one.warps, "share": one.share,
               "limited_by": one.limited_by} for one in found]  # fmt: skip
    return {"device": device.name, "source": device.source, "levels": rows,
            "chip": asdict(chip) if chip else None, "occupancy": blocks}  # fmt: skip


def draw_levels(device: Device, levels: list[MemoryLevel]) -> None:
    own = device.bandwidth_bytes_per_second
    rows = []
    for level in levels:
        rate = level.bytes_per_second
        against = digits(rate / own) if rate and own else "unknown"
        balance = level.balance(device)
        rows.append([
            level.name, "unknown" if level.bytes is None else size(level.bytes), level.reach,
            "unknown" if rate is None else f"{digits(rate / 1e9)} GB/s", against,
            "unknown" if balance is None else digits(balance),
        ])  # fmt: skip
    table(
        f"Memory of {device}, nearest first",
        ["level", "size", "read by", "rate", "of its memory's", "FLOP/byte, 16 bits"], rows,
    )  # fmt: skip


def draw_chip(device: Device, chip: Chip) -> None:
    each, clock = chip.multiprocessor, chip.clock(device)
    mhz = "unknown" if clock is None else f"{clock / 1e6:,.0f} MHz"
    table(
        f"Multiprocessors of {device}",
        ["what", "of one", "of all"],
        [
            ["multiprocessors (SMs)", 1, chip.multiprocessors],
            ["warps at once", each.warps, f"{each.warps * chip.multiprocessors:,}"],
            [f"threads at once, {WARP} a warp", f"{each.warps * WARP:,}", f"{chip.threads:,}"],
            ["blocks at once", each.blocks, f"{each.blocks * chip.multiprocessors:,}"],
            ["registers of 32 bits", f"{each.registers:,}",
             f"{each.registers * chip.multiprocessors:,}"],
            ["shared memory, at most", size(each.shared_bytes),
             size(each.shared_bytes * chip.multiprocessors)],
            ["shared memory of a block, at most", size(each.shared_block_bytes), ""],
            ["CUDA cores, fp32", each.cores, f"{chip.cores:,}"],
            ["tensor cores", each.matrix_units, chip.matrix_units],
            ["16-bit matrix FLOPs a clock", f"{each.matrix_flops:,}",
             f"{each.matrix_flops * chip.multiprocessors:,}"],
            ["clock of the stated peak", mhz, ""],
        ],
    )  # fmt: skip


def draw_occupancy(device: Device, found: list[Occupancy]) -> None:
    table(
        f"Occupancy: blocks of a kernel on one multiprocessor of {device}",
        ["block", "blocks", "warps", "occupancy", "limited by"],
        [[str(one.block), one.blocks, one.warps, percent(one.share), ", ".join(one.limited_by)]
         for one in found],
    )  # fmt: skip
