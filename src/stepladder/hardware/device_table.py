"""The device table, and finding a device in it by any of its names.

`source` names the document a row can be held against. Checked against published text so far: H20,
MI250X, A40, B200, B300, Gaudi2 and 3, the memory of H100-96GB, and parts of P100, V100, A100,
RTX5090 and TPU v5p. The other rows were entered without their document at hand: look before you
rely on one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from stepladder.errors import PlanError

from .device import GIB, Device
from .device_names import SHORT, SHOWN
from .devices import amd, cpu, nvidia_desktop
from .devices import google_intel as other
from .devices import nvidia_before_hopper as nvidia_early
from .devices import nvidia_hopper_and_later as nvidia_recent
from .prices import PRICES

_FILES = (nvidia_early, nvidia_recent, nvidia_desktop, amd, other, cpu)


def _priced(row: Device) -> Device:
    dollars, source = PRICES.get(row.name, (None, ""))
    return replace(row, dollars_per_hour=dollars, price_source=source)


DEVICES: Mapping[str, Device] = MappingProxyType(
    {row.name: _priced(row) for file in _FILES for row in file.ROWS}
)


USUAL = (
    "T4", "V100-32GB", "A10G", "A100-40GB", "A100-80GB", "L4", "L40S", "RTX3090", "RTX4090",
    "H100-80GB", "H100-PCIe", "H200", "B200", "GB200", "MI300X", "TPU-v5p", "CPU",
)  # fmt: skip


def _bare(name: str) -> str:
    """Reduce a name to what tells devices apart: no case, no maker, no punctuation."""
    words = re.sub(r"\b(nvidia|amd|intel|google|tesla|geforce|instinct|gpus?)\b", "", name.lower())
    return re.sub(r"[^a-z0-9+]", "", words)


# The table's own names come last: "NVIDIA H100" is shown by a 96 GB part and written by everyone
# for the 80 GB one, and a person who writes a name means what people mean.
_SPELLINGS = {
    **{_bare(shown): name for shown, name in SHOWN.items()},
    **{_bare(short): name for short, name in SHORT.items()},
    **{_bare(name): name for name in DEVICES},
}


# What may stand behind a name and tells nothing more: a slot (PCIe) would, a socket does not.
_MORE = re.compile(r"(?:sxm\d?|hbm\de?)(?=\d*(?:gb)?$)|(?<=\d)s$")
_MEMORY = re.compile(r"[\s_-](\d+) ?gi?b$", re.I)


def is_known_device(name: str) -> bool:
    return _spelled(name) is not None


def find_device(name: str) -> Device:
    """Return the device a person means by a name."""
    spelled = _spelled(name)
    if spelled is None:
        raise PlanError("device", f"'{name.strip()}' is not in the device table", _remedy(name))
    return DEVICES[spelled]


def _spelled(name: str) -> str | None:
    """The table's name; a plural, a socket or a memory that the device has may stand behind it."""
    bare = _bare(name)
    while bare not in _SPELLINGS and (more := _MORE.search(bare)):
        bare = bare[: more.start()] + bare[more.end() :]
    if bare in _SPELLINGS:
        return _SPELLINGS[bare]
    memory = _MEMORY.search(name.strip())
    shorter = _spelled(name.strip()[: memory.start()]) if memory else None
    return shorter if memory and shorter and _has(DEVICES[shorter], int(memory[1])) else None


def _has(device: Device, gigabytes: int) -> bool:
    """Whether it is sold with so much memory; check bits take a sixteenth of some."""
    size = device.memory_bytes
    return size is not None and abs(size / GIB - gigabytes) <= gigabytes / 15


def _remedy(name: str) -> str:
    close = get_close_matches(_bare(name), _SPELLINGS, n=4, cutoff=0.6)
    meant = list(dict.fromkeys(_SPELLINGS[spelling] for spelling in close))
    if meant:
        return f"Nearest: {', '.join(meant)}."
    more = f"{len(DEVICES) - len(USUAL)} more, all in stepladder.hardware.device_table.DEVICES"
    return f"Known: {', '.join(USUAL)} and {more}."


def recognise_device(shown: str, memory_bytes: int) -> Device | None:
    """The device that torch reports under a name, or None: an unknown card is never guessed.

    The memory must agree too, within what drivers and check bits keep for themselves: one name
    is used for several sizes, and a partition shows less than the whole.
    """
    row = DEVICES.get(SHOWN.get(shown, ""))
    if row is None or row.memory_bytes is None:
        return None
    agrees = abs(memory_bytes - row.memory_bytes) <= 0.08 * row.memory_bytes
    return row if agrees else None
