"""Parsing and writing the text that describes a cluster.

    8 nodes x 8 H100-80GB, NVLink 900 GB/s, 400 Gb/s per GPU, 2048 GiB host

The first part says how many of what: devices, or machines by the name that their seller gave them
("4 DGX H100", "2 x p5.48xlarge"); the others, in any order, the link inside a node, the link
between nodes and the host memory. Speeds are quoted as their makers do: NVLink, Infinity Fabric
and PCIe adding both directions, networks in one; "per direction" says otherwise. Everything that
could not be understood is reported at once. "500 W" caps the power of each device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stepladder.errors import PlanError, raise_all

from .device import Device
from .device_table import find_device, is_known_device
from .link import KINDS, Link, LinkKind, usual_link
from .machines import Machine, find_machine
from .power import cap_power
from .units import read_size, read_speed, write_latency, write_size, write_speed

EXAMPLES = "'8 nodes x 8 H100-80GB, 400 Gb/s', '64 x A100-80GB' or '1 H200'"

MOST_DEVICES = 2**20  # ten times the largest cluster that anybody has
MOST_IN_A_NODE = 1024  # devices that share one host and its memory
SLOWEST_LINK = 1e3  # bytes/s: below it a number is a slip of the keyboard

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_TIMES = r"(?: ?[×*] ?|x ?| x | )"  # in "1 Xeon-8380" the X belongs to the name
_NAME = r"((?:(?! [x×*] ).)+)"
_BY = r"(?:[x×*]|of|with)"
_NODES = re.compile(rf"(\d+) ?(?:nodes?|machines?|servers?) ?{_BY} ?(\d+){_TIMES}{_NAME}", re.I)
_GRID = re.compile(rf"(\d+) ?[x×*] ?(\d+) ?[x×*] ?{_NAME}", re.I)
_LAST = re.compile(rf"(\d+){_TIMES}{_NAME} [x×*] (\d+) nodes?", re.I)
_COUNT = re.compile(rf"(\d+){_TIMES}{_NAME}", re.I)
_AFTER = re.compile(rf"{_NAME}(?: ?[x×*] ?|:)(\d+)", re.I)
_NODES_ALONE = re.compile(rf"\d+ ?nodes?(?: ?{_BY} ?\d+)?(?: ?(?:gpus?|devices?))?", re.I)
_DEVICES_ALONE = re.compile(r"\d+ ?(?:gpus?|devices?|cards?)", re.I)
_NUMBER_WITH_UNIT = re.compile(rf" (?:\S+ )?{_NUMBER} ?(?:[a-zA-Z]+(?:/s|ps)|[GTM]i?B|k?W)\b", re.I)
_MANY = re.compile(r"(.*?) ?(\d+) ?[x×*]")
_THOUSANDS = re.compile(r"^\s*\d{1,3}(?:,\d{3})+(?= ?[x×* ])")
_WORDS = {"one": 1, "single": 1, "two": 2, "four": 4, "eight": 8, "sixteen": 16}
_LINK = re.compile(rf"(.*?) ?{_NUMBER} ?([a-zA-Z]+(?:/s|ps))( .+)?")
_HOST = re.compile(rf"{_NUMBER} ?([a-zA-Z]+) (?:host(?: memory)?|ram)(?: per node)?", re.I)
_CAP = r"(?:power )?(?:cap(?:ped)?|limit(?:ed)?)"
_EACH = r"(?: each| per (?:gpu|device|card|chip))?"
_POWER = re.compile(
    rf"(?:{_CAP}(?: at| to| of)? )?{_NUMBER} ?(k?W|k?watts?)(?: {_CAP})?{_EACH}", re.I
)
_PER_DEVICE = re.compile(r" per (?:gpu|device|card|chip)", re.I)
_PER_NODE = re.compile(r" per node", re.I)
_PER_DIRECTION = re.compile(r" per direction", re.I)
_LATENCY = re.compile(rf" at {_NUMBER} (us|s)")

_STATED = {
    "inside": "the link inside a node",
    "between": "the link between nodes",
    "host_memory_bytes": "the host memory",
    "watts": "the power cap",
}

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class ClusterText:
    """What a cluster's text states; None where it does not say."""

    device: Device
    num_nodes: int
    devices_per_node: int
    nodes_stated: bool
    inside: Link | None = None
    between: Link | None = None
    between_per_device: bool = False
    host_memory_bytes: int | None = None


def parse_cluster_text(text: str) -> ClusterText:
    """Parse a cluster's text, or raise every problem it has."""
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    head, *tail = [" ".join(re.sub("[()]", " ", part).split()) for part in text.split(",")]
    _refuse_half(head)
    problems: list[PlanError] = []
    pieces = _attempt(problems, _read_head, head)
    facts = _facts(tail, problems)
    raise_all(problems)
    assert pieces is not None  # no problem was raised, so the head was read
    _refuse_too_many(pieces)
    if cap := facts.pop("watts", None):
        facts["device"] = cap_power(cap[0], pieces.device, cap[1])
    return replace(pieces, **facts)


def read_stated(parts: Iterable[str]) -> dict[str, Any]:
    """What the parts behind the devices state: links, host memory, the power cap."""
    problems: list[PlanError] = []
    facts = _facts([" ".join(part.split()) for part in parts], problems)
    raise_all(problems)
    return facts


def _facts(parts: Iterable[str], problems: list[PlanError]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for part in filter(None, parts):
        fact = _attempt(problems, _read_fact, part) or {}
        problems += [_twice(name, part) for name in _STATED if name in fact and name in facts]
        facts |= fact
    return facts


def _refuse_too_many(pieces: ClusterText) -> None:
    """Refuse a number of devices that is a slip of the keyboard."""
    devices = pieces.num_nodes * pieces.devices_per_node
    if devices > MOST_DEVICES:
        problem = f"{pieces.num_nodes} nodes x {pieces.devices_per_node} are {devices:,} devices"
        raise PlanError("cluster", problem, f"The most that is planned for is {MOST_DEVICES:,}.")
    if pieces.devices_per_node > MOST_IN_A_NODE:
        problem = f"no node holds {pieces.devices_per_node:,} {pieces.device}"
        remedy = f"Use {MOST_IN_A_NODE:,} or fewer in a node: '16 nodes x 8 {pieces.device}'."
        raise PlanError("cluster", problem, remedy)


def _attempt(problems: list[PlanError], reader: Callable[[str], Read], part: str) -> Read | None:
    try:
        return reader(part)
    except PlanError as problem:
        problems.append(problem)
        return None


def _twice(name: str, part: str) -> PlanError:
    problem = f"'{part}' states {_STATED[name]} a second time"
    return PlanError("cluster", problem, "Keep one of them.")


def _read_head(part: str) -> ClusterText:
    first, _, rest = re.sub("^an? ", "", part, flags=re.I).partition(" ")
    written = f"{_WORDS[first.lower()]} {rest}" if first.lower() in _WORDS and rest else part
    if is_known_device(written) or find_machine(written):  # before "4090" is read as a number
        return _of_name(written, 1)
    if found := _NODES.fullmatch(written) or _GRID.fullmatch(written):
        nodes, each, name = found.groups()
        return ClusterText(
            _device(part, name), _some(part, nodes), _some(part, each), nodes_stated=True
        )
    if found := _LAST.fullmatch(written):
        each, name, nodes = found.groups()
        return ClusterText(
            _device(part, name), _some(part, nodes), _some(part, each), nodes_stated=True
        )
    if found := _COUNT.fullmatch(written):
        count, name = found.groups()
        return _of_name(_checked(part, name), _some(part, count))
    if found := _AFTER.fullmatch(written):
        name, count = found.groups()
        return _of_name(_checked(part, name), _some(part, count))
    if part.isalpha():
        return _of_name(part, 1)  # which it is not: the device table says what is near
    problem = f"'{part}' does not say how many of which device"
    raise PlanError("cluster", problem, f"Write, for example, {EXAMPLES}.")


def _refuse_half(part: str) -> None:
    """Refuse a text that has a count and no device."""
    if _NODES_ALONE.fullmatch(part) or _DEVICES_ALONE.fullmatch(part):
        problem = f"'{part}' counts and does not say which device"
        raise PlanError("cluster", problem, f"Write, for example, {EXAMPLES}.")


def _checked(part: str, name: str) -> str:
    """The name, if no link or memory was written behind it without a comma."""
    further = _NUMBER_WITH_UNIT.search(name)
    if further and not is_known_device(name) and is_known_device(name[: further.start()]):
        device = name[: further.start()].strip()
        remedy = f"Write a comma behind the device: '{part.replace(device, device + ',', 1)}'."
        raise PlanError("cluster", f"'{name}' names more than a device", remedy)
    return name


def _device(part: str, name: str) -> Device:
    return find_device(_checked(part, name))


def _of_name(name: str, count: int) -> ClusterText:
    machine = find_machine(name)
    if machine is None:
        return _in_usual_nodes(find_device(name), count)
    return _of_machines(machine, count)


def _of_machines(machine: Machine, count: int) -> ClusterText:
    number = machine.num_devices
    return ClusterText(machine.device, count, number, nodes_stated=True, between=machine.network)


def _some(part: str, digits: str) -> int:
    if int(digits) < 1:
        raise PlanError("cluster", f"'{part}' counts {digits}", "The least is 1.")
    return int(digits)


def _in_usual_nodes(device: Device, num_devices: int) -> ClusterText:
    """Put devices into nodes of the usual size; one node that is not full is usual too."""
    size = min(device.devices_per_node, num_devices)
    if num_devices % size == 0:
        return ClusterText(device, num_devices // size, size, nodes_stated=False)
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
    if found := _POWER.fullmatch(part):
        number, unit = found.groups()
        return {"watts": (part, float(number) * (1000 if unit[0] in "kK" else 1))}
    if found := _LINK.fullmatch(part):
        written, number, unit, rest = found.groups()
        many = _MANY.fullmatch(written)  # "8x400 Gb/s": so many ports
        ports, written = (int(many[2]), many[1]) if many else (1, written)
        speed = ports * read_speed(part, float(number), unit)
        if speed < SLOWEST_LINK:
            problem = f"'{part}' is {speed:g} bytes a second, which no link of a cluster is"
            raise PlanError("cluster.link", problem, "Write, for example, '400 Gb/s'.")
        return _read_link(part, _kind(part, written), speed, rest or "")
    remedy = (
        "Write a link ('NVLink 900 GB/s', '400 Gb/s per GPU'), memory ('2048 GiB host') "
        "or a power cap ('500 W')."
    )
    raise PlanError("cluster", f"'{part}' is not understood", remedy)


def _kind(part: str, written: str) -> LinkKind:
    spelled = {name.lower(): kind for name, kind in KINDS.items()}
    spelled |= {"": KINDS["network"], "xgmi": KINDS["Infinity Fabric"], "ib": KINDS["InfiniBand"]}
    if written.lower() not in spelled:
        remedy = f"Links: {', '.join(KINDS)}."
        raise PlanError("cluster.link", f"'{written}' in '{part}' is not a kind of link", remedy)
    return spelled[written.lower()]


def _read_link(part: str, kind: LinkKind, quoted: float, rest: str) -> dict[str, object]:
    latency = _LATENCY.search(rest)
    rest, one_way = _take(_LATENCY.sub("", rest), _PER_DIRECTION)
    rest, per_device = _take(rest, _PER_DEVICE)
    if not kind.inside:  # a device's own link is never shared by its node
        rest, _ = _take(rest, _PER_NODE)
    if rest:
        remedy = "After a speed may stand: per GPU, per direction, at 5 us; for networks, per node."
        raise PlanError("cluster.link", f"'{rest.strip()}' in '{part}' is not understood", remedy)
    link = usual_link(kind.name, quoted / (1 if one_way else kind.quoted_directions))
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
