"""Starting the ranks of a run: on this machine, by torchrun's own agent."""

from .local import launch_local
from .rank import begin_rank, record_failure

__all__ = ["begin_rank", "launch_local", "record_failure"]
