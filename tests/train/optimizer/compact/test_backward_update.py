"""Updates inside backward: the same numbers, and no step that holds all gradients."""

import pytest
import torch

from stepladder.errors import NonFinite, PlanError
from stepladder.plan import Plan
from stepladder.plan.settled.settle import broken_rules
from stepladder.train import as_batch, climb
from stepladder.train.optimizer.compact.compact_adam import state_of
from tests.train.toys import llama, ragged


def run_of(plan, optimizer="adamw lr=1e-3 wd=0.1", loss="cross_entropy", **how):
    return climb(llama(), loss=loss, optimizer=optimizer, plan=plan, **how)


@pytest.mark.parametrize("word", ["", "state=14", "state=7"])
def test_losses_norms_and_state_are_the_same_to_the_bit(word):
    after, inside = run_of(f"bf16-master {word}"), run_of(f"bf16-master {word} update=backward")
    for batch in ragged(3):
        one, other = after.step(batch).read(), inside.step(batch).read()
        assert one.loss == other.loss
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-6)
    for p, q in zip(after.module.parameters(), inside.module.parameters()):
        a, b = state_of(after.optimizer, p), state_of(inside.optimizer, q)
        assert torch.equal(p, q) and all(torch.equal(a[key], b[key]) for key in a)


def test_most_gradients_are_gone_before_the_last_one_comes():
    run, held = run_of("bf16-master update=backward"), []
    parameters = list(run.module.parameters())
    parameters[0].register_post_accumulate_grad_hook(
        lambda _: held.append(sum(p.grad is not None for p in parameters))
    )
    run.step(ragged(1)[0]).read()
    assert held == [0], "its own was freed by the hook before"


def test_gradients_that_are_asked_for_outside_a_step_stay():
    run = run_of("bf16-master update=backward")
    before = [p.detach().clone() for p in run.module.parameters()]
    run.gradients(as_batch(ragged(1)[0], 0))
    assert all(p.grad is not None for p in run.module.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters()))


def test_a_gradient_that_is_not_finite_stops_the_run_and_moves_nothing_by_itself():
    run = run_of(
        "bf16-master update=backward", loss=lambda out, _: out.float().sum() * float("nan")
    )
    before = [p.detach().clone() for p in run.module.parameters()]
    with pytest.raises(NonFinite):
        run.step(ragged(1)[0]).read()
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters()))
    assert run.optimizer.counts.sum() == 0


def test_a_run_goes_on_exactly_from_a_checkpoint(tmp_path):
    batches = ragged(4)
    straight = run_of("bf16-master state=7 update=backward")
    expected = [straight.step(batch).loss for batch in batches]
    first = run_of("bf16-master state=7 update=backward")
    for batch in batches[:2]:
        first.step(batch).read()
    first.save(tmp_path)
    second = run_of("bf16-master state=7 update=backward", seed=5)
    second.load(tmp_path)
    assert [second.step(batch).loss for batch in batches[2:]] == expected[2:]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("bf16", "bf16 updates all parameters at once. Use bf16-master alone"),
        (
            "bf16-master optimizer='adamw clip=1'",
            "clip=1.0 needs all gradients' norm. Use clip=none",
        ),
        ("bf16-master micro=2 batch=4", "micro=2 may add up gradients of several micro-batches"),
        ("bf16-master graphs=on", "graphs=on records backward alone. Leave graphs out"),
        ("bf16-master offload=optimizer", "updates on the host after backward. Leave offload out"),
        ("bf16-master ddp replicate=2", "ddp has buckets of gradients that stay. Use zero3, or"),
        ("bf16-master zero1 shard=2", "zero1 has buckets of gradients that stay. Use zero3, or"),
        ("bf16-master tensor=2", "tensor= adds up some gradients over ranks after backward. Leave"),
        ("bf16-master zero3 offload=parameters", "updates on the host after backward. Leave"),
        ("bf16-master exact=runs recheck=9", "recheck=9 compares all gradients. Leave recheck out"),
    ],
)
def test_what_needs_all_gradients_is_refused(words, why):
    found = [str(one) for one in broken_rules(Plan.parse(f"{words} update=backward"))]
    assert any(one.startswith("update: update=backward frees each gradient") for one in found)
    assert any(why in one for one in found)


def test_a_policy_that_takes_steps_back_is_refused():
    with pytest.raises(PlanError, match="update=backward cannot take back what it updated"):
        run_of("bf16-master update=backward", nonfinite="skip")
