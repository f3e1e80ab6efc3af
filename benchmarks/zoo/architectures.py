"""The architectures of the zoo by name; a problem is made alike in every process."""

from __future__ import annotations

import torch

from torchvision_import import import_torchvision

import_torchvision()  # before transformers, which imports it

import language  # noqa: E402
import others  # noqa: E402
import perception  # noqa: E402
from problem import Problem, randomise  # noqa: E402

ARCHITECTURES = {make.__name__: make for make in (*language.ALL, *perception.ALL, *others.ALL)}


def make_problem(name: str, seed: int = 1, *, masks: bool = True) -> Problem:
    """The architecture with random weights drawn from the seed.

    Args:
        masks: False: padding is not masked, as context parallelism asks; it stays no target.
    """
    torch.manual_seed(0)
    problem = ARCHITECTURES[name]()
    randomise(problem.module, seed)
    if not masks:
        for batch in problem.batches:
            if isinstance(batch, dict):
                batch.pop("attention_mask", None)
    return problem
