"""Starting the ranks of a run: this machine's by torchrun's own agent, others' by what is there."""

from .cell import on_ranks
from .kubernetes import CHECKPOINTS, FILES, KINDS, KubernetesChoice
from .local import launch_local
from .nodes import Nodes, parse_nodes
from .places import Elsewhere, OnHosts, OnKubernetes, OnRay, OnSlurm
from .rank import begin_rank, record_failure
from .request import Request, Resources, read_bytes, read_words
from .slurm import SlurmChoice
from .ssh import parse_hosts

__all__ = [
    "CHECKPOINTS",
    "FILES",
    "KINDS",
    "Elsewhere",
    "KubernetesChoice",
    "Nodes",
    "OnHosts",
    "OnKubernetes",
    "OnRay",
    "OnSlurm",
    "Request",
    "Resources",
    "SlurmChoice",
    "begin_rank",
    "launch_local",
    "on_ranks",
    "parse_hosts",
    "parse_nodes",
    "read_bytes",
    "read_words",
    "record_failure",
]
