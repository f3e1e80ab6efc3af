"""Updates inside backward on several ranks: FSDP2 calls them with reduced slices."""

from functools import partial

import pytest
import torch
from torch import nn

from stepladder.errors import StepladderError
from stepladder.train import climb
from stepladder.train.optimizer.compact.compact_adam import state_of
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import llama, ragged

ADAM = "adamw lr=1e-3 wd=0.1"


def begin(plan, model=llama):
    torch.set_num_threads(1)
    return climb(model(), loss="cross_entropy", optimizer=ADAM, plan=plan, device="cpu")


def learn(plan, folder="", start=0, stop=3):
    """Losses, norms, this rank's state, and gradients that were there at once."""
    learned, held = begin(plan), []
    if start:
        learned.load(folder)
    shards = learned.climbed.shards
    update = learned.optimizer.update_parameters

    def counting(*given):
        held.append(sum(shard.parameter.grad is not None for shard in shards))
        update(*given)

    learned.optimizer.update_parameters = counting
    steps = ragged(3)[start:stop]
    taken = [learned.step(batch, rows="global").read() for batch in steps]
    if stop < 3:
        learned.save(folder)
    state = {s.name: dict(state_of(learned.optimizer, s.owned)) for s in shards}
    return [(t.loss, t.grad_norm) for t in taken], state, held


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert all(torch.equal(values[key], other[name][key]) for key in values), name


CASES = [
    (2, "zero3"),
    (2, "zero2"),
    (4, "hsdp shard=2 replicate=2"),
    (4, "zero3 shard=2 context=2"),
]


@pytest.mark.parametrize(("ranks", "plan"), soak_after(CASES))
@pytest.mark.parametrize("word", ["state=14", pytest.param("", marks=pytest.mark.soak)])
def test_losses_norms_and_state_are_those_of_updates_after_backward(ranks, plan, word):
    after = run(learn, ranks, f"bf16-master {word} {plan}")
    inside = run(learn, ranks, f"bf16-master {word} {plan} update=backward")
    for (reports, state, _), (others, now, held) in zip(after, inside):
        assert [loss for loss, _ in others] == [loss for loss, _ in reports]
        for (_, norm), (_, other) in zip(reports, others):
            assert norm == pytest.approx(other, rel=1e-6)
        assert_same_state(state, now)
        assert max(held) == 1, "each is freed before the next one comes"


def test_it_goes_on_exactly_from_a_checkpoint(tmp_path):
    words, folder = "bf16-master state=7 zero3 update=backward", str(tmp_path)
    straight = run(learn, 2, words)
    run(learn, 2, words, folder, 0, 2)
    for (reports, state, _), (others, now, _) in zip(straight, run(learn, 2, words, folder, 2)):
        assert others == reports[2:]
        assert_same_state(state, now)


class Scaled(nn.Module):
    """Built-in but for a number that no rank can slice."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = llama(), nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        return self.inner(tokens) * self.scale


def refusals():
    found = []
    for model in (Scaled, with_anatomy):
        try:
            begin("bf16-master zero3 update=backward", model)
        except StepladderError as refused:
            found.append(str(refused))
    hooked = begin("bf16-master zero3 update=backward")
    hooked.module.embedding.weight.register_post_accumulate_grad_hook(lambda _: None)
    try:
        hooked.step(ragged(1)[0], rows="global")
    except StepladderError as refused:
        found.append(str(refused))
    return found


def with_anatomy():
    made = llama()
    made.scale = nn.Parameter(torch.ones(()))
    forward = made.forward
    made.forward = partial(lambda tokens: forward(tokens) * made.scale)
    return made


def test_gradients_that_are_known_too_late_are_refused():
    late = "which is known, or summed, only after backward: update=backward is too early."
    expected = [
        f"Scaled: may have parameters that no rank uses in a batch, {late} Use update=step.",
        f"'scale': is whole on every rank, {late} Use update=step.",
        "'embedding.weight': has hooks for the whole gradient, which is freed in slices under "
        "update=backward. Use update=step.",
    ]
    assert run(refusals, 2) == [expected] * 2
