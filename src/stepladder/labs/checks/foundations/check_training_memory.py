"""Checks of training memory: bytes by owner, against a measured step."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import nn

from stepladder.labs.grading.check_words import Mistake, expect, expect_close, written
from stepladder.measure import measure_memory

MISTAKES = (
    Mistake(
        "Adam's second moment is forgotten",
        '"adamw": 2}',
        '"adamw": 1}',
        "Adam keeps two moments of each parameter",
    ),
    Mistake(
        "the gradients are forgotten",
        '"gradients": BYTES * num_parameters,',
        '"gradients": 0,',
        "each parameter has a gradient of its own size",
    ),
    Mistake(
        "weights are counted among the activations",
        "if address not in known:",
        "if True:",
        "a layer's saved weight is not new memory",
    ),
    Mistake(
        "what two layers keep is counted twice",
        "kept[address] = tensor",
        "kept[len(kept)] = tensor",
        "one storage is saved by two layers",
    ),
)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p),
}


def check_state(lesson: ModuleType) -> None:
    """Parameters, gradients and optimizer are those that measure_memory finds in a step."""
    for name, make in OPTIMIZERS.items():
        model, x = lesson.network(8, 16), torch.randn(4, 8)
        optimizer = make(model.parameters())

        def step(model: nn.Module = model, x=x, optimizer=optimizer) -> None:
            model(x).square().mean().backward()
            optimizer.step()

        step()
        found = lesson.state_bytes(sum(p.numel() for p in model.parameters()), name)
        measured = measure_memory(step, model, optimizer, torch.device("cpu"))
        counters = 4 * len(list(model.parameters())) * (name == "adamw")  # Adam counts its steps
        gradients = written(found["gradients"], "the gradients' bytes")
        expect(gradients, "gradients: 0 bytes; each parameter has a gradient of its own size.")
        if name == "adamw":
            expect(
                found["optimizer"] != found["parameters"],
                "adamw: one number a parameter; Adam keeps two moments of each parameter.",
            )
        for owner, wanted in (
            ("parameters", measured.parameters),
            ("gradients", measured.gradients),
            ("optimizer", measured.optimizer - counters),
        ):
            expect_close(found[owner], wanted, f"{name}: bytes of the {owner}", rtol=0)


def check_activations(lesson: ModuleType) -> None:
    """Activations are counted once each, and without the weights."""
    model, rows = lesson.network(8, 16), 4
    found = lesson.kept_bytes(model, torch.randn(rows, 8))
    wanted = 4 * rows * (8 + 16 + 16 + 10)  # the input, two ReLUs, the output that is squared
    weights = 4 * (16 * 16 + 16 * 10)  # the first layer needs no gradient of its input
    expect(
        found not in (wanted + weights, wanted + weights + 4 * 16 * 8),
        f"{found} bytes, {found - wanted} too many: a layer's saved weight is not new memory.",
    )
    expect(
        found != wanted + 2 * 4 * rows * 16,
        f"{found} bytes, expected {wanted}: one storage is saved by two layers, count it once.",
    )
    expect_close(found, wanted, "bytes kept for 4 rows", rtol=0)


def check_rows_that_fit(lesson: ModuleType) -> None:
    """The largest batch fits, and one row more does not."""
    model = lesson.network(8, 16)
    state = 16 * sum(p.numel() for p in model.parameters())
    for rows in (1, 100, 1000):
        kept = 4 * rows * (8 + 16 + 16 + 10)
        for budget, wanted in ((state + kept, rows), (state + kept - 1, rows - 1)):
            found = lesson.rows_that_fit(model, 8, "adamw", budget)
            expect(found == wanted, f"{found} rows in {budget} bytes, and {wanted} fit.")
