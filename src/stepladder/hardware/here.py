"""`here` in the text of a cluster: this machine, and what is stated beside it.

here                    every accelerator of this machine, or its processor as one rank
here x 2, 2 x here      so many ranks: of its accelerators, or beside each other on its processor
here, 500 W             and a link, host memory or a power cap, as of any cluster
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from stepladder.errors import PlanError

from .cluster import Cluster
from .cluster_text import read_stated
from .power import cap_power

_HERE = re.compile(r"here(?: ?[x×*] ?(?P<after>\d+))?|(?P<before>\d+) ?[x×*] ?here", re.I)


def is_here(text: object) -> bool:
    """Whether a cluster's text is about this machine."""
    return isinstance(text, str) and _HERE.fullmatch(head_of(text)) is not None


def head_of(text: str) -> str:
    return " ".join(text.split(",")[0].split())


def cluster_here(text: str) -> Cluster:
    """This machine as the text describes it.

    >>> from stepladder.hardware.here import cluster_here
    >>> cluster_here("here").num_nodes
    1
    """
    found = _HERE.fullmatch(head_of(text))
    assert found is not None
    stated: dict[str, Any] = read_stated(text.split(",")[1:])
    cluster, asked = Cluster.detect(), found["after"] or found["before"]
    if asked is not None:
        cluster = with_ranks(cluster, int(asked))
    if cap := stated.pop("watts", None):
        stated["device"] = cap_power(cap[0], cluster.device, cap[1])
    if stated.pop("between_per_device", False):
        link = stated["between"]
        speed = link.bytes_per_second * cluster.devices_per_node
        stated["between"] = replace(link, bytes_per_second=speed)
    return replace(cluster, **stated)


def with_ranks(cluster: Cluster, ranks: int) -> Cluster:
    """So many of this machine's accelerators; any number of ranks on a processor."""
    there = cluster.devices_per_node
    if ranks < 1:
        raise PlanError("cluster", f"'here x {ranks}' counts {ranks}", "The least is 1.")
    if not cluster.device.is_cpu and ranks > there:
        problem = (
            f"'here x {ranks}' asks for {ranks} {cluster.device}, and this machine has {there}"
        )
        raise PlanError("cluster", problem, f"Write 'here', or '{ranks} x {cluster.device}'.")
    return replace(cluster, devices_per_node=ranks)
