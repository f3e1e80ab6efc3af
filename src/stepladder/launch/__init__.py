"""Starting the ranks of a run: this machine's, by torchrun's own agent, and meeting the others."""

from .cell import on_ranks
from .local import launch_local
from .nodes import Nodes, parse_nodes
from .rank import begin_rank, record_failure

__all__ = ["Nodes", "begin_rank", "launch_local", "on_ranks", "parse_nodes", "record_failure"]
