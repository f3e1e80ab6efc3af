"""Runs whose masters and moments take 14, 10 or 7 bytes a parameter."""

import copy

import pytest
import torch

from stepladder.errors import PlanError
from stepladder.measure.training_state import measure_state
from stepladder.model import build
from stepladder.plan import Plan
from stepladder.train import EMA, as_batch, climb
from stepladder.train.optimizer.compact.compact_adam import master_of, state_of
from tests.train.toys import llama, ragged

ADAM = "adamw lr=1e-3 wd=0.1 clip=1"
SIZES = [14, 10, 7]


def run_of(size, model=None, optimizer=ADAM, more="", **how):
    word = "" if size == 16 else f"state={size}"
    plan = f"bf16-master {word} {more}"
    return climb(model or llama(), loss="cross_entropy", optimizer=optimizer, plan=plan, **how)


def steps(run, batches):
    return [run.step(batch).loss for batch in batches]


def whole_state(run):
    return [state_of(run.optimizer, p) for p in run.module.parameters()]


def same(one, other):
    return all(
        torch.equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in {*a, *b}
    )


def test_fourteen_bytes_train_with_the_bits_of_sixteen():
    wide, narrow = run_of(16), run_of(14)
    batches = ragged(4)
    assert steps(wide, batches) == steps(narrow, batches)
    assert same(whole_state(wide), whole_state(narrow))
    for p, q in zip(wide.module.parameters(), narrow.module.parameters()):
        assert torch.equal(p, q) and q.dtype == torch.bfloat16


@pytest.mark.parametrize(("size", "within"), [(10, 5e-3), (7, 1e-2)])
def test_fewer_bytes_learn_as_sixteen_do(size, within):
    batches = ragged(6) * 2
    exact, narrow = steps(run_of(16), batches), steps(run_of(size), batches)
    assert narrow != exact
    assert narrow == pytest.approx(exact, rel=within)


@pytest.mark.parametrize(("size", "most"), [(16, 16), (14, 14.0), (10, 10.1), (7, 7.2)])
def test_a_parameter_takes_so_many_bytes(size, most):
    run = run_of(size, build("llama:layers=1,hidden=64,heads=2,vocab=64,sequence=16"))
    state = measure_state(run, as_batch(ragged(1)[0], 0))
    elements = sum(p.numel() for p in run.module.parameters())
    total = state.parameters + state.gradients + state.optimizer
    assert size <= total / elements <= most


@pytest.mark.parametrize("size", SIZES)
def test_a_run_goes_on_exactly_from_a_checkpoint(size, tmp_path):
    batches = ragged(4)
    expected = steps(run_of(size, seed=3), batches)
    first = run_of(size, seed=3)
    steps(first, batches[:2])
    first.save(tmp_path, wait=size != 14)
    first.finish_saving()
    second = run_of(size, llama(seed=9), seed=4)
    second.load(tmp_path)
    assert same(whole_state(first), whole_state(second))
    assert steps(second, batches[2:]) == expected[2:]


@pytest.mark.parametrize(
    ("before", "after"), [(16, 14), (14, 16), (14, 10), (10, 16), (16, 7), (7, 16), (7, 14)]
)
def test_a_checkpoint_loads_into_any_other_number_of_bytes(before, after, tmp_path):
    first = run_of(before)
    steps(first, ragged(1))
    first.save(tmp_path)
    second = run_of(after, llama(seed=9))
    second.load(tmp_path)
    for a, b in zip(whole_state(first), whole_state(second)):
        assert torch.equal(a["step"], b["step"])
        for key in ("master", "exp_avg", "exp_avg_sq"):
            exact = after in (16, 14) or before == after
            error = (a[key] - b[key]).norm()
            assert error == 0 if exact else error <= 0.02 * a[key].norm()


def test_a_checkpoint_without_masters_is_gone_on_from_its_parameters(tmp_path):
    first = climb(llama(), loss="cross_entropy", optimizer=ADAM, plan="bf16")
    steps(first, ragged(1))
    first.save(tmp_path)
    second = run_of(14, llama(seed=9))
    second.load(tmp_path)
    for p, q in zip(first.module.parameters(), second.module.parameters()):
        assert torch.equal(p, master_of(second.optimizer, q))
    assert second.optimizer.counts.unique().tolist() == [1.0]


@pytest.mark.parametrize("size", SIZES)
def test_torchs_own_state_dict_keeps_the_digits(size):
    run = run_of(size)
    steps(run, ragged(2))
    other = run_of(size, llama(seed=9))
    other.module.load_state_dict(run.module.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    assert same(whole_state(run), whole_state(other))


@pytest.mark.parametrize("size", SIZES)
def test_the_seed_decides_how_numbers_are_rounded(size):
    batches = ragged(2)
    one, again, other = (run_of(size, seed=seed) for seed in (0, 0, 1))
    assert steps(one, batches) == steps(again, batches) and steps(other, batches)
    assert same(whole_state(one), whole_state(again))
    assert same(whole_state(one), whole_state(other)) == (size == 14)


@pytest.mark.parametrize("size", SIZES)
def test_a_part_that_stays_in_float32_is_its_own_master(size):
    run = run_of(size, more="keep=fp32:norm")
    steps(run, ragged(2))
    head = run.module.norm.weight
    assert head.dtype == torch.float32
    assert torch.equal(master_of(run.optimizer, head), head)
    assert set(run.optimizer.state[head]) == {"step", "exp_avg", "exp_avg_sq"}


def test_weights_are_averaged_from_their_masters():
    wide, narrow = run_of(16), run_of(14)
    averages = []
    for run in (wide, narrow):
        ema = EMA(run, decay=0.9)
        for batch in ragged(3):
            run.step(batch).read()
            ema.update()
        averages.append(ema.averages)
    assert all(torch.equal(averages[0][name], averages[1][name]) for name in averages[0])


@pytest.mark.parametrize("size", SIZES)
def test_a_step_that_is_not_finite_changes_nothing(size):
    run = climb(llama(), loss=lambda out, _: out.float().sum() * float("nan"), optimizer=ADAM,
                plan=f"bf16-master state={size}", nonfinite="skip")  # fmt: skip
    before = [p.detach().clone() for p in run.module.parameters()]
    run.step(ragged(1)[0]).read()
    assert run.optimizer.counts.sum() == 0
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters()))


def test_what_keeps_no_masters_is_refused():
    with pytest.raises(PlanError, match="state: state=14 says how masters are kept, and bf16"):
        climb(llama(), loss="cross_entropy", plan="bf16 state=14")
    with pytest.raises(PlanError, match="state: '12' is none of 16, 14, 10, 7 bytes"):
        Plan.parse("bf16-master state=12")
