"""The plain loop's steps with everything that they compute; and how far rounding may move it.

What rounding explains is measured: the loop is run again with its inputs and the results of its
layers moved by one rounding of the precision in use, each time with other signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.seam.modules import children_of, parameters_of
from stepladder.seam.pytree import tree_map
from stepladder.verify.course import Course
from stepladder.verify.plain.plain_loop import PlainLoop
from stepladder.verify.reference import (
    generator_states,
    plain_steps,
    start_plain_loop,
    whole_parameters,
)

from .compare import distance, norm_of
from .sites import Site
from .taps import Taps

Record = dict[Site, Tensor]  # in order of computing


@dataclass(slots=True)
class Expected:
    """What the reference computed; its tensors are in files, one a step."""

    orders: list[dict[Site, int]] = field(default_factory=list)  # by step: place in its order
    norms: list[dict[Site, float]] = field(default_factory=list)
    sizes: dict[Site, int] = field(default_factory=dict)  # numbers in each tensor
    noise: list[dict[Site, float]] = field(default_factory=list)  # largest distance of any draw
    callers: dict[tuple[str, int], str] = field(default_factory=dict)  # as `Taps` has them
    takers: dict[Site, str] = field(default_factory=dict)
    returned: dict[Site, Site] = field(default_factory=dict)
    draws: bool = False  # whether the module draws random numbers


def record_reference(course: Course, folder: Path) -> Expected:
    """Run the loop once as it is; its tensors go into the folder."""
    loop, samples = start_plain_loop(course)
    before, expected = generator_states(loop.device), Expected()
    taps, steps = recorded_steps(loop, samples, course)
    for step, record in enumerate(steps):
        torch.save({tuple(site): tensor for site, tensor in record.items()}, file(folder, step))
        expected.orders.append({site: index for index, site in enumerate(record)})
        expected.norms.append({site: norm_of(tensor) for site, tensor in record.items()})
        expected.noise.append(dict.fromkeys(record, 0.0))
        expected.sizes.update((site, tensor.numel()) for site, tensor in record.items())
    expected.callers, expected.takers, expected.returned = taps.callers, taps.takers, taps.returned
    expected.draws = not all(map(torch.equal, before, generator_states(loop.device)))
    return expected


def add_noise(
    course: Course, folder: Path, expected: Expected, rounding: float, draws: Iterable[int]
) -> None:
    """Run the loop again for each draw, and keep how far it came from the run without noise."""
    for draw in draws:
        loop, samples = start_plain_loop(course)
        torch.manual_seed(draw)  # a module that draws numbers draws others
        perturb(loop.module, rounding, torch.Generator(loop.device).manual_seed(draw))
        _, steps = recorded_steps(loop, samples, course)
        for record, noise, name in zip(steps, expected.noise, files(folder)):
            kept = torch.load(name, mmap=True, weights_only=True)
            for site, tensor in record.items():
                if site in noise and kept[site].shape == tensor.shape:
                    noise[site] = max(noise[site], distance(tensor, kept[site]))


def file(folder: Path, step: int) -> Path:
    return folder / f"{step}.pt"


def files(folder: Path) -> Iterator[Path]:
    step = 0
    while file(folder, step).exists():
        yield file(folder, step)
        step += 1


def recorded_steps(loop: PlainLoop, samples: Any, course: Course) -> tuple[Taps, Iterator[Record]]:
    """The hooks, and each step's record when it is asked for."""
    record: Record = {}

    def note(site: Site, micro: int | None, tensor: Tensor) -> None:
        scaled = site.kind in ("gradient", "output gradient") and loop.scaler.is_enabled()
        found = tensor / loop.scaler.get_scale() if scaled else tensor
        record.setdefault(site, found.detach().cpu().clone())

    taps = Taps(loop.module.named_modules(), note)
    for name, parameter in loop.trained.items():
        parameter.register_post_accumulate_grad_hook(gradient_recorder(name, note))

    def steps() -> Iterator[Record]:
        taken = plain_steps(loop, samples, course)
        for _ in range(course.steps):
            record.clear()
            with taps.during(0):
                numbers = next(taken)
            record[Site("loss", "")] = torch.tensor(numbers.loss, dtype=torch.float64)
            record.update(state_of(loop))
            yield record

    return taps, islice(steps(), course.steps)


def gradient_recorder(name: str, note: Callable[..., None]) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None:
            note(Site("gradient", name), None, gradient.to_dense())

    return hook


def state_of(loop: PlainLoop) -> Record:
    """The optimizer's state, the parameters and the buffers after a step."""
    found: Record = {}
    for name, updated in loop.updated.items():
        for key, value in loop.optimizer.state.get(updated, {}).items():
            if isinstance(value, Tensor):
                found[Site("optimizer state", name, 0, key)] = value.detach().cpu().clone()
    found |= {Site("parameter", name): p for name, p in whole_parameters(loop.module).items()}
    for name, buffer in loop.module.named_buffers(remove_duplicate=False):
        found[Site("buffer", name)] = buffer.detach().cpu().clone()
    return found


def perturb(module: nn.Module, rounding: float, draw: torch.Generator) -> None:
    """Have what flows into a module, and out of each of its layers, be moved by one rounding."""

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        sign = torch.rand(value.shape, generator=draw, device=value.device) < 0.5
        return (value + value * torch.where(sign, rounding, -rounding)).to(value.dtype)

    def before(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return tree_map(moved, (tuple(args), dict(kwargs)))

    def after(_: nn.Module, args: Any, outputs: Any) -> Any:
        return tree_map(moved, outputs)

    module.register_forward_pre_hook(before, with_kwargs=True)
    for part in module.modules():
        if parameters_of(part) or not children_of(part):
            part.register_forward_hook(after)
