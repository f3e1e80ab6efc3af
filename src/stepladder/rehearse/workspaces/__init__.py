"""What kernels take for themselves, which no fake tensor shows, by stated rules."""

from .kernel_scratch import Workspaces

__all__ = ["Workspaces"]
