"""Caches of this processor as Linux tells them, and this machine's levels."""

import os

from stepladder.world.machine.detect_levels import detect_levels, processor_caches


def test_caches_of_a_processor_are_read_nearest_first(tmp_path):
    for index, told in enumerate(
        (("1", "Data", "48K", "0"), ("1", "Instruction", "32K", "0"),
         ("2", "Unified", "2048K", "0"), ("3", "Unified", "105M", "0-31"))
    ):  # fmt: skip
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size", "shared_cpu_list"), told):
            (folder / name).write_text(f"{text}\n")
    found = [(one.name, one.bytes, one.reach) for one in processor_caches(tmp_path)]
    assert found == [
        ("L1 cache", 49152, "one core"), ("L2 cache", 2097152, "one core"),
        ("L3 cache", 110100480, "cores 0-31"),
    ]  # fmt: skip


def test_a_machine_that_tells_nothing_has_no_caches(tmp_path):
    assert list(processor_caches(tmp_path / "nowhere")) == []


def test_this_machines_last_level_of_a_processor_is_its_memory():
    device, chip, levels = detect_levels()
    if not device.is_cpu:
        assert chip is None or chip.multiprocessors > 0
        return
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert chip is None and levels[-1].name == "host memory"
    assert abs(levels[-1].bytes - pages) <= 2**20
