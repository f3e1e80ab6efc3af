"""Checks of the digit classifier: what it learns from, what it is judged by, and how well."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stepladder import climb
from stepladder.labs.grading.check_words import Mistake, expect, expect_close

MISTAKES = (
    Mistake(
        "digits for judging are among those for training",
        "train, judge = order[:-360]",
        "train, judge = order",
        "stand among those for training",
    ),
    Mistake(
        "probabilities are given to cross_entropy, which wants logits",
        "logits = model(x.to(device))",
        "logits = model(x.to(device)).softmax(-1)",
        "cross_entropy does the softmax itself",
    ),
    Mistake(
        "gradients are never cleared",
        "        optimizer.zero_grad()\n",
        "",
        "the first step's gradient was still there",
    ),
    Mistake(
        "dropout is left on while judging",
        "    model.eval()\n",
        "",
        "dropout is still on",
    ),
)
CPU = torch.device("cpu")


def check_the_split(lesson: ModuleType) -> None:
    """360 digits are kept for judging, and none of them is trained on."""
    (x, y), (unseen, labels) = lesson.load()
    expect(len(unseen) == len(labels) == 360, f"{len(unseen)} digits for judging, not 360.")
    known = {row.numpy().tobytes() for row in x}
    both = sum(row.numpy().tobytes() in known for row in unseen)
    expect(not both, f"{both} of the digits for judging stand among those for training.")
    expect(len(x) == len(y) == 1437, f"{len(x)} digits to train on, not 1437.")


def check_judging(lesson: ModuleType) -> None:
    """A model that is right about every digit is found to be, with dropout off."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10)).eval()
    pictures = torch.randn(500, 64)
    data = (pictures, model(pictures).argmax(1))  # so that it is right about every one
    found = lesson.accuracy(model.train(), data, CPU)
    expect(found == 1, f"{found:.3f} of digits that the model reads rightly: dropout is still on. "
           "Call model.eval().")  # fmt: skip


def check_a_step(lesson: ModuleType) -> None:
    """Two steps move the weights by two gradients of the cross-entropy of the logits."""
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    theirs = nn.Linear(64, 10)
    theirs.load_state_dict(model.state_dict())
    wrong = {"softmax": nn.Linear(64, 10), "kept": nn.Linear(64, 10)}
    for other in wrong.values():
        other.load_state_dict(model.state_dict())
    steps = [(torch.randn(128, 64), torch.randint(10, (128,))) for _ in range(2)]
    lesson.train(model, steps, CPU, torch.float32)
    for module, softmax, clear in ((theirs, False, True), (wrong["softmax"], True, True),
                                   (wrong["kept"], False, False)):  # fmt: skip
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for x, y in steps:
            if clear:
                optimizer.zero_grad()
            logits = module(x).softmax(-1) if softmax else module(x)
            cross_entropy(logits, y).backward()
            optimizer.step()
    start = "two steps do not end where they should: "
    expect(not same(model, wrong["softmax"]), f"{start}cross_entropy does the softmax itself.")
    expect(not same(model, wrong["kept"]), f"{start}the first step's gradient was still there.")
    expect_close(model.weight, theirs.weight, "the weights after two steps")


def same(one: nn.Linear, other: nn.Linear) -> bool:
    return torch.allclose(one.weight, other.weight, rtol=1e-5, atol=1e-7)


def check_it_reads(lesson: ModuleType) -> None:
    """Over 95 % of the unseen digits are read rightly, in fp32 and in bf16."""
    seen, unseen = lesson.load()
    for dtype in (torch.float32, torch.bfloat16):
        model = lesson.network(64)
        lesson.train(model, lesson.batches(seen), CPU, dtype)
        found = lesson.accuracy(model, unseen, CPU)
        expect(found > 0.95, f"{found:.1%} of the unseen digits in {dtype}, expected over 95 %.")


def check_the_ladder_gives_the_same(lesson: ModuleType) -> None:
    """stepladder.climb ends at the same weights after the same batches."""
    seen, _ = lesson.load()
    mine, theirs = lesson.network(32), lesson.network(32)
    for model in (mine, theirs):
        model[4] = nn.Dropout(0.0)  # so that nobody's random numbers matter
    lesson.train(mine, lesson.batches(seen), CPU, torch.float32)
    run = climb(
        theirs, loss=cross_entropy, optimizer="sgd lr=0.1 momentum=0.9", plan="fp32", device="cpu"
    )
    for batch in lesson.batches(seen):
        run.step(batch)
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        expect_close(one, other, "the weights after training", rtol=1e-3)
