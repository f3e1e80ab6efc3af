"""How a module's output becomes one number, and how many targets that number is a mean over."""

from .loss import Loss, make_loss

__all__ = [
    "Loss",
    "make_loss",
]
