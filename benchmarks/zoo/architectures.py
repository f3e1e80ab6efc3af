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


def make_problem(name: str, seed: int = 1) -> Problem:
    """The architecture with random weights drawn from the seed."""
    torch.manual_seed(0)
    problem = ARCHITECTURES[name]()
    randomise(problem.module, seed)
    return problem
