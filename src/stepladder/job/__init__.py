"""What `stepladder train` does with a recipe, as a library: open it, train it, sum it up.

Nothing here prints: whoever wants to see a run as it goes hands in a `Display`.
"""

from .display import Display, JobStart, NoDisplay
from .open_job import open_job
from .profile_recipe import ProfileResult, profile
from .train_recipe import train
from .train_result import TrainResult
from .training_job import TrainingJob

__all__ = [
    "Display",
    "JobStart",
    "NoDisplay",
    "ProfileResult",
    "TrainResult",
    "TrainingJob",
    "open_job",
    "profile",
    "train",
]
