"""Starting the ranks of a run: this machine's by torchrun's own agent, others' by what is there."""

from .kubernetes.manifests import KubernetesChoice
from .launchers import OnKubernetes, OnSlurm, RemoteLauncher
from .local.rendezvous import parse_nodes
from .local.start_local import launch_local
from .on_ranks.failure import Failure
from .on_ranks.on_ranks import on_ranks
from .on_ranks.ranks import Ranks
from .run_request import Request, Resources
from .slurm.slurm_script import SlurmChoice

__all__ = [
    "Failure",
    "KubernetesChoice",
    "OnKubernetes",
    "OnSlurm",
    "Ranks",
    "RemoteLauncher",
    "Request",
    "Resources",
    "SlurmChoice",
    "launch_local",
    "on_ranks",
    "parse_nodes",
]
