"""16-bit parameters learn like float32 ones where masters stand beside them."""

import copy

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.model import build
from stepladder.rungs.precision.precision import accumulate_in_float32
from stepladder.train import as_batch, climb
from tests.train.toys import llama, ragged

TINY = "adamw lr=2e-5 clip=1"  # steps that bf16 alone rounds away


def run_of(plan, optimizer=TINY, model=None):
    return climb(model or llama(), loss="cross_entropy", optimizer=optimizer, plan=plan)


def test_small_steps_add_up_in_the_masters_and_are_lost_without():
    before = [p.detach().clone() for p in llama().parameters()]
    moved = {}
    for plan in ("fp32", "bf16-master", "bf16-pure"):
        run = run_of(plan)
        for batch in ragged(6):
            run.step(batch).read()
        values = (
            [run.optimizer.state[p]["master"] for p in run.module.parameters()]
            if plan == "bf16-master"
            else list(run.module.parameters())
        )
        moved[plan] = torch.cat(
            [(v.detach().float() - b).flatten() for v, b in zip(values, before)]
        )
    exact = moved["fp32"]
    assert (moved["bf16-master"] - exact).norm() < 0.1 * exact.norm()
    assert (moved["bf16-pure"] - exact).norm() > 0.5 * exact.norm()


def test_parameters_are_their_masters_rounded_and_state_is_float32():
    run = run_of("bf16-master")
    run.step(ragged(1)[0]).read()
    for p in run.module.parameters():
        state = run.optimizer.state[p]
        assert p.dtype == torch.bfloat16
        assert {state[k].dtype for k in ("master", "exp_avg", "exp_avg_sq")} == {torch.float32}
        assert torch.equal(p, state["master"].bfloat16())
        assert state["step"].item() == 1


def test_masters_begin_as_the_values_that_were_given_not_as_their_rounding():
    model = llama()
    given = [p.detach().clone() for p in model.parameters()]
    run = run_of("bf16-master", model=model)
    kept = [run.optimizer.state[p]["master"] for p in run.module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(given, kept))


def test_gradients_of_several_passes_add_up_in_float32():
    run = run_of("bf16-master micro=2")
    batch = ragged(1)[0]
    run.gradients(as_batch(batch, 0))
    assert {p.grad.dtype for p in run.module.parameters()} == {torch.float32}


def test_a_torch_that_cannot_add_up_in_float32_is_refused():
    with pytest.raises(PlanError, match="micro-batches add up in fp32, and torch .* in bf16"):
        accumulate_in_float32(llama(), able=False)


def test_a_module_without_values_begins_as_it_is_filled():
    on_meta = build("llama:layers=1,hidden=32,heads=2,vocab=64,sequence=16", device="meta")
    run = run_of("bf16-master", model=on_meta)
    for p in run.module.parameters():
        assert torch.equal(run.optimizer.state[p]["master"], p.float())
    assert run.step(ragged(1)[0]).loss < 5


def test_a_run_goes_on_exactly_from_a_checkpoint(tmp_path):
    batches = ragged(6)
    straight = run_of("bf16-master")
    expected = [straight.step(batch).loss for batch in batches]
    first = run_of("bf16-master")
    for batch in batches[:3]:
        first.step(batch).read()
    first.save(tmp_path)
    second = run_of("bf16-master", model=llama(seed=9))
    second.load(tmp_path)
    assert [second.step(batch).loss for batch in batches[3:]] == expected[3:]


def test_a_checkpoint_without_masters_is_gone_on_from_its_parameters(tmp_path):
    first = run_of("bf16")
    first.step(ragged(1)[0]).read()
    first.save(tmp_path)
    second = run_of("bf16-master", model=llama(seed=9))
    second.load(tmp_path)
    second.step(ragged(2)[1]).read()
    for p, q in zip(first.module.parameters(), second.module.parameters()):
        assert (p.detach() - second.optimizer.state[q]["master"]).abs().max() < 1e-2 * p.abs().max()
    assert second.optimizer.counts.unique().tolist() == [2.0]


def test_float32_parameters_are_read_from_the_masters_of_a_checkpoint(tmp_path):
    first = run_of("bf16-master")
    for batch in ragged(2):
        first.step(batch).read()
    first.save(tmp_path)
    second = run_of("fp32", model=llama(seed=9))
    second.load(tmp_path)
    for p, q in zip(first.module.parameters(), second.module.parameters()):
        assert torch.equal(first.optimizer.state[p]["master"], q)


def test_torchs_own_state_dict_keeps_the_digits():
    run = run_of("bf16-master")
    for batch in ragged(2):
        run.step(batch).read()
    saved = copy.deepcopy(run.optimizer.state_dict())
    other = run_of("bf16-master", model=llama(seed=9))
    other.optimizer.load_state_dict(saved)
    for p, q in zip(run.module.parameters(), other.module.parameters()):
        one, two = run.optimizer.state[p], other.optimizer.state[q]
        assert all(torch.equal(one[k], two[k]) for k in ("master", "exp_avg", "exp_avg_sq", "step"))
        assert torch.equal(p, q)
        assert two["step"].data_ptr() == other.optimizer.counts.data_ptr() + 4 * next(
            i for i, x in enumerate(other.optimizer.parameters) if x is q
        )


def test_a_step_that_is_not_finite_is_not_counted():
    run = climb(llama(), loss=lambda out, _: out.float().sum() * float("nan"), optimizer=TINY,
                plan="bf16-master", nonfinite="skip")  # fmt: skip
    before = [p.detach().clone() for p in run.module.parameters()]
    run.step(ragged(1)[0]).read()
    assert run.optimizer.counts.sum() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters()))


def test_what_keeps_no_masters_is_refused():
    with pytest.raises(PlanError, match="optimizer: sgd keeps no masters, and bf16-master needs"):
        run_of("bf16-master", "sgd lr=0.1")
