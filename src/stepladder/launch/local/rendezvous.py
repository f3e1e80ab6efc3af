"""Where several machines meet: how many may come, at which address, and how this one is reached.

The place to meet is torch's own c10d rendezvous: a store in the launcher of the machine whose
address was named. The others only need that address and port. Nothing is taken from this
machine's own name, which need not resolve: who hosts the store and by which address others reach
this machine is read off its network interfaces.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import psutil
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from stepladder.errors import PlanError, WorldError

PORT = 29400  # torchrun's own
HOST = re.compile(r"[\w.:%\[\]][\w.:%\[\]-]*", re.ASCII)  # a name or an address
LAST_CALL_SECONDS = 5  # for further machines, once enough have come
BEAT_SECONDS, BEATS = 3, 3  # a machine silent for so many beats is counted out
ANSWER_SECONDS = 20  # for the store to answer
JOIN_SECONDS = 60  # at least so long others are waited for: to count one out takes a while
# Torch would have the ranks of every start meet in the store of the first: see Agent._rendezvous.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


@dataclass(frozen=True, slots=True)
class Nodes:
    least: int = 1  # machines below which nobody trains
    most: int = 1
    host: str = ""  # whose launcher keeps the store; empty: this machine is alone
    port: int = 0
    run_id: str = ""

    @property
    def elastic(self) -> bool:
        """Whether machines may leave and return."""
        return self.most > self.least

    def counts(self) -> range:
        return range(self.least, self.most + 1)


def parse_nodes(nodes: str, rendezvous: str, run_id: str) -> Nodes:
    """From `2` or `1:4`, and `HOST:PORT`."""
    least, _, most = nodes.partition(":")
    numbers = [least, most or least]
    if not all(n.isascii() and n.isdigit() and 0 < int(n) < 2**20 for n in numbers):
        raise PlanError(
            "nodes", f"'{nodes}' is not a number of machines", "Write --nodes 2, or --nodes 1:4."
        )
    if int(numbers[0]) > int(numbers[1]):
        problem = f"at least {numbers[0]} and at most {numbers[1]} machines cannot both be"
        raise PlanError("nodes", problem, f"Write --nodes {numbers[1]}:{numbers[0]}.")
    host, _, port = rendezvous.rpartition(":") if ":" in rendezvous else (rendezvous, "", str(PORT))
    if not HOST.fullmatch(host) or not (
        port.isascii() and port.isdigit() and 0 < int(port) < 65536
    ):
        raise PlanError(
            "rendezvous",
            f"'{rendezvous}' is not an address where machines meet",
            f"Write --rendezvous HOST:{PORT}, the same on every machine; HOST is one of them.",
        )
    return Nodes(int(numbers[0]), int(numbers[1]), host.strip("[]"), int(port), run_id)


def own_addresses() -> dict[str, str]:
    """This machine's addresses, each with its interface."""
    return {
        entry.address.partition("%")[0]: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6)
    }


def resolve(nodes: Nodes) -> tuple[int, tuple[str, int]]:
    """The address of the place to meet."""
    try:
        family, _, _, _, found = socket.getaddrinfo(
            nodes.host, nodes.port, type=socket.SOCK_STREAM
        )[0]
    except OSError as unknown:
        raise WorldError(
            "rendezvous",
            f"no machine is known as '{nodes.host}' ({unknown.strerror or unknown})",
            "Check its name, or give its address.",
        ) from unknown
    return family, (str(found[0]), int(found[1]))


def route_to(nodes: Nodes) -> tuple[str, str]:
    """The address by which the others reach this machine, and its interface."""
    family, target = resolve(nodes)
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect(target)  # sends nothing: the kernel only picks the way
            address = probe.getsockname()[0]
    except OSError as cut:
        raise unreachable(nodes, cut.strerror or str(cut)) from cut
    return address, own_addresses().get(address, "")


def hosts_store(nodes: Nodes) -> bool:
    """Whether the store is this launcher's to keep: it is our address, and nobody keeps it yet."""
    family, target = resolve(nodes)
    if target[0] not in own_addresses():
        return False
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.settimeout(2)
        return probe.connect_ex(target) != 0


def rendezvous(nodes: Nodes, address: str, wait_seconds: int) -> RendezvousHandler:
    """This launcher's seat at the place to meet."""
    alone = not nodes.host
    settings = {
        "join_timeout": max(wait_seconds, JOIN_SECONDS),
        "last_call_timeout": 1 if alone else LAST_CALL_SECONDS,
        "keep_alive_interval": BEAT_SECONDS,
        "keep_alive_max_attempt": BEATS,
        "read_timeout": ANSWER_SECONDS,
        "is_host": alone or hosts_store(nodes),
    }
    host = f"[{nodes.host}]" if ":" in nodes.host else nodes.host
    endpoint = "localhost:0" if alone else f"{host}:{nodes.port}"  # 0: any free port
    return get_rendezvous_handler(
        RendezvousParameters(
            "c10d", endpoint, nodes.run_id, nodes.least, nodes.most, local_addr=address, **settings
        )
    )


@contextmanager
def own_stores() -> Iterator[None]:
    """Context in which each start's ranks are given a place of their own to meet."""
    before = os.environ.get(OWN_STORE)
    os.environ[OWN_STORE] = "1"
    try:
        yield
    finally:
        os.environ.pop(OWN_STORE)
        if before is not None:
            os.environ[OWN_STORE] = before


def unreachable(nodes: Nodes, why: str) -> WorldError:
    return WorldError(
        "rendezvous",
        f"nobody answers at {nodes.host}:{nodes.port} ({why})",
        f"Start the command on {nodes.host} too, and see that the port is open.",
    )
