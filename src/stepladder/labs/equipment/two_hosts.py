"""Two hosts on one machine: network namespaces joined by a cable of a given speed.

Linux has them and only root may make them. Elsewhere the ranks stand on this one machine, and
`reason` says why.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from stepladder.errors import WorldError
from stepladder.measure import SlowLink

NEW_NETWORK = 0x40000000  # the kernel's CLONE_NEWNET


@dataclass(frozen=True, slots=True)
class Hosts:
    cable: SlowLink | None
    reason: str = ""  # why there is no cable

    def at(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function on a rank that goes to its host first: for `on_ranks(…, join=False)`."""

        def there(rank: int, num_ranks: int, meeting: str, *args: Any) -> Any:
            if self.cable is not None:
                enter(self.cable.names[rank % 2])
                os.environ["GLOO_SOCKET_IFNAME"] = self.cable.devices[rank % 2]
            dist.init_process_group("gloo", meeting, rank=rank, world_size=num_ranks)
            return function(*args)

        return there


@contextmanager
def two_hosts(rate: str) -> Iterator[Hosts]:
    """Context in which even ranks have one host, odd ranks another; rate as `tc` writes it."""
    with ExitStack() as stack:
        try:
            hosts = Hosts(stack.enter_context(SlowLink(rate)))
        except WorldError as refused:
            hosts = Hosts(None, str(refused))
        yield hosts


def enter(namespace: str) -> None:
    """Move this process to another network."""
    there = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(there, NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(there)
