"""A cluster's text: the words people write, read into pieces, and pieces written back.

    8 nodes x 8 H100-80GB, NVLink 900 GB/s, 400 Gb/s per GPU, 2048 GiB host

The first part says how many of what; the others, in any order, the link inside a node, the link
between nodes and the host memory. Speeds are quoted as their makers do: NVLink, Infinity Fabric
and PCIe adding both directions, networks in one; "per direction" says otherwise. Everything that
could not be understood is reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stepladder.errors import PlanError, raise_all

from .device import Device
from .link import KINDS, Kind, Link, usual
from .table import find
from .units import read_size, read_speed, write_latency, write_size, write_speed

EXAMPLES = "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'"

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_TIMES = r"(?: ?[×*] ?|x ?| x | )"  # in "1 Xeon-8380" the X belongs to the name
_NAME = r"((?:(?! [x×*] ).)+)"
_NODES = re.compile(rf"(\d+) ?nodes? ?(?:[x×*]|of) ?(\d+){_TIMES}{_NAME}", re.I)
_COUNT = re.compile(rf"(\d+){_TIMES}{_NAME}", re.I)
_AFTER = re.compile(rf"{_NAME} ?[x×*] ?(\d+)", re.I)
_LINK = re.compile(rf"(.*?) ?{_NUMBER} ?([a-zA-Z]+(?:/s|ps))( .+)?")
_HOST = re.compile(rf"{_NUMBER} ?([a-zA-Z]+) (?:host(?: memory)?|ram)(?: per node)?", re.I)
_PER_DEVICE = re.compile(r" per (?:gpu|device|card|chip)", re.I)
_PER_NODE = re.compile(r" per node", re.I)
_PER_DIRECTION = re.compile(r" per direction", re.I)
_LATENCY = re.compile(rf" at {_NUMBER} (us|s)")

_STATED = {
    "inside": "the link inside a node",
    "between": "the link between nodes",
    "host_memory_bytes": "the host memory",
}

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a text says; None where it says nothing."""

    device: Device
    num_nodes: int
    devices_per_node: int
    nodes_stated: bool
    inside: Link | None = None
    between: Link | None = None
    between_per_device: bool = False
    host_memory_bytes: int | None = None


def read(text: str) -> Pieces:
    """Read a cluster's text, or raise every problem it has."""
    head, *tail = [" ".join(part.split()) for part in text.split(",")]
    problems: list[PlanError] = []
    pieces = _attempt(problems, _read_head, head)
    facts: dict[str, Any] = {}
    for part in tail:
        fact = _attempt(problems, _read_fact, part) or {}
        problems += [_twice(name, part) for name in _STATED if name in fact and name in facts]
        facts |= fact
    raise_all(problems)
    assert pieces is not None  # no problem was raised, so the head was read
    return replace(pieces, **facts)


def _attempt(problems: list[PlanError], reader: Callable[[str], Read], part: str) -> Read | None:
    try:
        return reader(part)
    except PlanError as problem:
        problems.append(problem)
        return None


def _twice(name: str, part: str) -> PlanError:
    problem = f"'{part}' states {_STATED[name]} a second time"
    return PlanError("cluster", problem, "Keep one of them.")


def _read_head(part: str) -> Pieces:
    if found := _NODES.fullmatch(part):
        nodes, each, name = found.groups()
        return Pieces(find(name), _some(part, nodes), _some(part, each), nodes_stated=True)
    if found := _COUNT.fullmatch(part):
        count, name = found.groups()
        return _in_usual_nodes(find(name), _some(part, count))
    if found := _AFTER.fullmatch(part):
        name, count = found.groups()
        return _in_usual_nodes(find(name), _some(part, count))
    problem = f"'{part}' does not say how many of which device"
    raise PlanError("cluster", problem, f"Write, for example, {EXAMPLES}.")


def _some(part: str, digits: str) -> int:
    if int(digits) < 1:
        raise PlanError("cluster", f"'{part}' counts {digits}", "The least is 1.")
    return int(digits)


def _in_usual_nodes(device: Device, num_devices: int) -> Pieces:
    """Put devices into nodes of the usual size; one node that is not full is usual too."""
    size = min(device.devices_per_node, num_devices)
    if num_devices % size == 0:
        return Pieces(device, num_devices // size, size, nodes_stated=False)
    even = max(ways for ways in range(1, size) if num_devices % ways == 0)
    raise PlanError(
        "cluster",
        f"{num_devices} {device} do not fill nodes of {size}, the usual number",
        f"State the nodes, for example '{num_devices // even} nodes x {even} {device}'.",
    )


def _read_fact(part: str) -> dict[str, object]:
    if found := _HOST.fullmatch(part):
        number, unit = found.groups()
        return {"host_memory_bytes": read_size(part, float(number), unit)}
    if found := _LINK.fullmatch(part):
        written, number, unit, rest = found.groups()
        kind = _kind(part, written)
        return _read_link(part, kind, read_speed(part, float(number), unit), rest or "")
    remedy = "Write a link ('NVLink 900 GB/s', '400 Gb/s per GPU') or memory ('2048 GiB host')."
    raise PlanError("cluster", f"'{part}' is not understood", remedy)


def _kind(part: str, written: str) -> Kind:
    spelled = {name.lower(): kind for name, kind in KINDS.items()}
    spelled |= {"": KINDS["network"], "xgmi": KINDS["Infinity Fabric"]}
    if written.lower() not in spelled:
        remedy = f"Links: {', '.join(KINDS)}."
        raise PlanError("cluster.link", f"'{written}' in '{part}' is not a kind of link", remedy)
    return spelled[written.lower()]


def _read_link(part: str, kind: Kind, quoted: float, rest: str) -> dict[str, object]:
    latency = _LATENCY.search(rest)
    rest, one_way = _take(_LATENCY.sub("", rest), _PER_DIRECTION)
    rest, per_device = _take(rest, _PER_DEVICE)
    if not kind.inside:  # a device's own link is never shared by its node
        rest, _ = _take(rest, _PER_NODE)
    if rest:
        remedy = "After a speed may stand: per GPU, per direction, at 5 us; for networks, per node."
        raise PlanError("cluster.link", f"'{rest.strip()}' in '{part}' is not understood", remedy)
    link = usual(kind.name, quoted / (1 if one_way else kind.quoted_directions))
    if latency:
        link = replace(link, latency_seconds=float(latency[1]) / (1e6 if latency[2] == "us" else 1))
    if kind.inside:
        return {"inside": link}
    return {"between": link, "between_per_device": per_device}


def _take(words: str, phrase: re.Pattern[str]) -> tuple[str, bool]:
    left, times = phrase.subn("", words)
    return left, times > 0


def write_link(link: Link) -> str:
    """Write a link so that reading it gives the same link back, to the last bit."""
    kind = KINDS[link.kind]
    name = "" if kind.name == "network" else f"{kind.name} "
    unit = "GB/s" if kind.inside else "Gb/s"
    text = name + write_speed(link.bytes_per_second, unit, kind.quoted_directions)
    if link.latency_seconds == kind.latency_seconds:
        return text
    return f"{text} at {write_latency(link.latency_seconds)}"


def write_memory(num_bytes: int) -> str:
    return f"{write_size(num_bytes)} host"
