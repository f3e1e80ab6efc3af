import json
import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import stepladder as sl
from stepladder.errors import PlanError
from stepladder.plan import Plan
from stepladder.record.user_cache import cache_path
from stepladder.train.tuning.contest import Contest
from stepladder.train.tuning.remembered import recall
from stepladder.train.tuning.trial import Trial
from stepladder.train.tuning.tuner import explain, make_tuner
from stepladder.world import Place
from tests.soak import soak_after

CPU = torch.device("cpu")
# Without compilation, which takes a processor half a minute: kernels on and off are tried.
QUICK = "auto compile=off tune=60"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch):
    """Nothing here depends on which plan is faster, so a step or two of each are timed."""
    monkeypatch.setattr("stepladder.train.tuning.trial.TURN_SECONDS", 0.005)


class Net(nn.Module):
    """With statistics, random numbers of three kinds, and a count of its calls."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(8, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        noise = 1e-3 * (np.random.random() + random.random())
        return self.last(self.drop(torch.relu(self.norm(self.first(x))))) + noise


def batch(rows=8, width=torch.float32):
    draw = torch.Generator().manual_seed(1)
    classes = torch.randint(0, 3, (rows,), generator=draw)
    return torch.randn(rows, 6, generator=draw).to(width), classes


def train(plan, *, sampled, module=None, width=torch.float32, **options):
    """A run's losses, with the module's state and the generators' after it."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    module, given = (module or Net()).to(width), batch(width=width)
    sample = given if sampled else None
    run = sl.climb(module, loss="cross_entropy", optimizer="sgd lr=0.1", plan=plan, sample=sample,
                   device="cpu", **options)  # fmt: skip
    losses = [run.step(given).loss for _ in range(3)]
    drawn = (torch.rand(()).item(), np.random.random(), random.random())
    return run, losses, {k: v.clone() for k, v in module.state_dict().items()}, drawn


@pytest.mark.parametrize("sampled", [True, False])
def test_a_run_does_not_know_that_plans_were_tried(sampled, capsys):
    run, losses, state, drawn = train(QUICK, sampled=sampled)
    assert "tuning 2 of 2" in capsys.readouterr().err
    plain, wanted, plain_state, plain_drawn = train(str(run.plan), sampled=sampled)
    assert losses == wanted and drawn == plain_drawn
    assert run.module.calls == plain.module.calls == 3
    assert all(torch.equal(state[name], plain_state[name]) for name in plain_state)


def test_a_gradient_the_user_kept_is_still_there():
    module = Net()
    module.first.weight.grad = torch.ones_like(module.first.weight)
    sl.climb(module, loss="cross_entropy", plan=QUICK, sample=batch(), device="cpu")
    assert torch.equal(module.first.weight.grad, torch.ones_like(module.first.weight))


@pytest.mark.parametrize("sampled", [True, False])
def test_what_was_tried_is_said_with_its_times(sampled):
    run, *_ = train(QUICK, sampled=sampled)
    assert "the fastest of 2 tried here" in run.because and "ms a step" in run.because
    assert [event.split(":")[1].strip() for event in run.events if event.startswith("tuning:")] == [
        "fp32", "fp32 kernels=on",
    ]  # fmt: skip


def test_a_second_start_tries_nothing(capsys):
    first, *_ = train(QUICK, sampled=True)
    capsys.readouterr()
    again, *_ = train(QUICK, sampled=True)
    assert again.plan == first.plan and "(tried 20" in again.because
    assert "tuning" not in capsys.readouterr().err


def test_another_batch_module_loss_or_optimizer_is_tried_anew(capsys):
    def tries(module=None, rows=8, **options):
        given = {"loss": "cross_entropy", "plan": QUICK, "sample": batch(rows), **options}
        sl.climb(module or Net(), device="cpu", **given)
        return "tuning 2 of 2" in capsys.readouterr().err

    assert tries() and not tries()
    assert tries(rows=16)
    assert tries(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert tries(loss=nn.CrossEntropyLoss(weight=torch.ones(3)))
    assert tries(optimizer="sgd lr=0.1") and not tries(optimizer="sgd lr=0.2")


def remember(text):
    """Have the next start recall this plan for whatever was tried so far."""
    path = cache_path("tuned", "cpu")
    answers = json.loads(path.read_text())
    path.write_text(json.dumps({key: {**each, "plan": text} for key, each in answers.items()}))


@pytest.mark.parametrize(
    ("sampled", "width"),
    soak_after(
        [(True, torch.float32), (False, torch.float64), (True, torch.float64),
         (False, torch.float32)],
        gate=2,
    ),
)  # fmt: skip
def test_the_plan_that_was_chosen_is_the_runs(sampled, width):
    train(QUICK, sampled=sampled, width=width)
    remember("fp32 kernels=on")
    run, losses, *_ = train(QUICK, sampled=sampled, width=width)
    assert run.plan.kernels is True and "(tried 20" in run.because
    assert any("matmul autotuning and epilogues off" in event for event in run.events)
    assert losses == train("fp32 kernels=on", sampled=sampled, width=width)[1]


def test_an_answer_of_another_version_is_not_believed(capsys):
    train(QUICK, sampled=True)
    remember("fp32 kernel=on")
    capsys.readouterr()
    train(QUICK, sampled=True)
    assert "tuning 2 of 2" in capsys.readouterr().err


class Drifting(nn.Linear):
    """Whose every copy answers larger."""

    factor = 1.0

    def __deepcopy__(self, memo):
        made = type(self)(6, 3)
        made.load_state_dict(self.state_dict())
        Drifting.factor *= 2
        made.factor = Drifting.factor
        return made

    def forward(self, x):
        return self.factor * super().forward(x)


def test_a_plan_that_computes_something_else_is_dropped():
    run = sl.climb(Drifting(6, 3), loss="cross_entropy", plan=QUICK, sample=batch(), device="cpu")
    assert not run.plan.kernels and "the fastest of 1 tried here" in run.because
    assert any("kernels=on: dropped, its first loss is" in event for event in run.events)


@pytest.mark.parametrize("text", ["", "[]", '{"plan": 3}', "{"])
def test_of_a_damaged_memory_nothing_is_recalled(text):
    path = cache_path("tuned", "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert recall("plan", "cpu") is None


def test_a_damaged_memory_is_not_believed(capsys):
    path = cache_path("tuned", "cpu")
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    train(QUICK, sampled=True)
    assert "tuning 2 of 2" in capsys.readouterr().err
    assert isinstance(json.loads(path.read_text()), dict)


def test_when_the_budget_is_spent_the_rest_is_left_out():
    run, *_ = train("auto compile=off tune=0.000001", sampled=True)
    assert str(run.plan).startswith("fp32 ")
    assert any("0 s were spent, and tune=1e-06 was allowed" in event for event in run.events)


@pytest.mark.parametrize("words", ["auto tune=off", "auto", "auto tune=0"])
def test_a_processor_tries_nothing_unless_told_to(words, capsys):
    run, *_ = train(words, sampled=True)
    assert "tuning" not in capsys.readouterr().err + str(run.events)


def test_exact_runs_and_modules_that_are_cut_try_nothing():
    def made(**options):
        known = {"place": Place(), "whole": True, "exact": False, "compiles": True, **options}
        return make_tuner(["tune=60"], CPU, **known)

    assert made() is not None
    assert made(exact=True) is None and made(whole=False) is None


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_a_budget_that_is_no_number_of_seconds_is_refused(text):
    with pytest.raises(PlanError, match=f"^tune: '{text}' is not a number of seconds. Write"):
        train(f"auto tune={text}", sampled=True)


def test_a_plan_that_is_written_out_is_not_tuned():
    with pytest.raises(PlanError, match="^tune: plans are tried for plan=auto alone"):
        train("fp32 tune=60", sampled=True)


class Uncopyable(Net):
    def __deepcopy__(self, memo):
        raise RuntimeError("I am the only one")


def test_a_module_that_cannot_be_copied_is_trained_all_the_same():
    run, losses, *_ = train(QUICK, sampled=True, module=Uncopyable())
    assert len(losses) == 3
    assert "no plan could be tried" in run.because and "I am the only one" in run.because


def test_a_loss_that_reads_the_module_itself_reaches_no_other_gradient():
    """It computes with the module's parameters and the copy's outputs: nothing to compare."""
    module = Net()

    def penalised(outputs, targets):
        penalty = sum(p.square().sum() for p in module.parameters())
        return nn.functional.cross_entropy(outputs, targets) + 0.01 * penalty

    run = sl.climb(module, loss=penalised, plan=QUICK, sample=batch(), device="cpu")
    assert all(parameter.grad is None for parameter in module.parameters())
    assert "no plan could be tried" in run.because
    assert run.step(batch()).loss > 0


def test_a_loss_with_parameters_is_copied_too():
    torch.manual_seed(0)
    tail = nn.Linear(3, 3)

    class Tail(nn.Module):
        def __init__(self):
            super().__init__()
            self.tail = tail

        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(self.tail(outputs), targets)

    before = tail.weight.clone()
    run = sl.climb(Net(), loss=Tail(), plan=QUICK, sample=batch(), device="cpu")
    assert "the fastest of 2 tried here" in run.because
    assert torch.equal(tail.weight, before) and tail.weight.grad is None


def test_without_a_sample_a_plan_that_changed_the_module_is_kept(capsys):
    run, *_ = train("auto compile=off tune=60 recompute=blocks", sampled=False,
                    module=nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)))  # fmt: skip
    assert "other plans are tried where climb is given sample=batch" in run.because
    assert "tuning" not in capsys.readouterr().err


def trial(text, milliseconds, gib=1.0, **numbers):
    known = {"loss": 2.0, "norm": 1.0, **numbers}
    return Trial(Plan.parse(text), milliseconds / 1e3, 1.0, int(gib * 2**30), **known)


def test_a_choice_is_explained_by_its_time_and_memory():
    trials = [trial("bf16", 100), trial("bf16 compile=whole", 50), trial("bf16 compile=blocks", 60)]
    assert explain(trials[1], trials) == (
        "the fastest of 3 tried here, 50 ms a step against 100 ms without compilation, 1.00 GiB"
    )


def test_more_memory_than_plain_compilation_is_said():
    trials = [trial("bf16 compile=whole", 60, 1), trial("bf16 compile=whole kernels=on", 50, 2)]
    said = explain(trials[1], trials)
    assert said.endswith("2.00 GiB (compiled without kernels: 1.00 GiB)")


def test_a_plan_that_computes_another_loss_is_dropped():
    slow, fast = trial("bf16", 100), trial("bf16 compile=whole", 50, loss=2.1)
    dropped = fast.checked_against(slow)
    assert dropped.dropped == "its first loss is 2.1 and not 2"
    assert "dropped, its first loss" in str(dropped)


@pytest.mark.parametrize(
    ("numbers", "dropped"),
    [
        ({"loss": 2.015}, False),
        ({"loss": 2.025}, True),
        ({"norm": 1.04}, False),
        ({"norm": 1.06}, True),
        ({"loss": float("nan")}, True),
    ],
)
def test_another_result_is_seen(numbers, dropped):
    held = trial("bf16 compile=whole", 50, **numbers).checked_against(trial("bf16", 100))
    assert bool(held.dropped) == dropped


def test_random_numbers_may_move_the_first_loss():
    reference = trial("bf16", 100, chance=0.05)
    assert (
        not trial("bf16 compile=whole", 50, loss=2.2, norm=1.3).checked_against(reference).dropped
    )
    assert trial("bf16 compile=whole", 50, loss=2.3).checked_against(reference).dropped


def test_nothing_is_said_of_a_plan_that_did_not_end():
    eager = Trial(Plan.parse("bf16"), dropped="out of memory")
    trials = [eager, trial("bf16 compile=whole", 60), trial("bf16 compile=blocks", 50)]
    assert "without compilation" not in explain(trials[2], trials)


class Growing:
    """A loss that counts its calls."""

    calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets) * self.calls


def closed_over():
    """Losses with a number, a list and a tensor that every call changes."""
    seen, mean, calls = [], torch.zeros(()), 0

    def loss(outputs, targets):
        nonlocal calls
        calls += 1
        seen.append(calls)
        value = nn.functional.cross_entropy(outputs, targets)
        mean.mul_(0.9).add_(value.detach(), alpha=0.1)
        return value * (1 + 0.1 * len(seen)) + mean

    return loss, lambda: (calls, list(seen), mean.item())


@pytest.mark.parametrize("sampled", [True, False])
def test_a_loss_that_counts_its_calls_begins_with_the_first(sampled):
    loss = Growing()
    run = sl.climb(Net(), loss=loss, plan=QUICK, sample=batch() if sampled else None, device="cpu")
    run.step(batch())
    assert loss.calls == 1 and "the fastest of 2 tried here" in run.because


@pytest.mark.parametrize("sampled", [True, False])
def test_what_a_loss_closes_over_is_as_it_was(sampled):
    loss, state = closed_over()
    run = sl.climb(Net(), loss=loss, plan=QUICK, sample=batch() if sampled else None, device="cpu")
    if sampled:
        assert state() == (0, [], 0.0)
    assert "of 2 tried here" in run.because or not sampled


@pytest.mark.parametrize("sampled", [True, False])
def test_a_loss_that_holds_another_network_is_not_tried(sampled):
    average = nn.Linear(6, 3)

    def distilled(outputs, targets):
        return nn.functional.mse_loss(outputs, average(batch()[0]).detach())

    sample = batch() if sampled else None
    run = sl.climb(Net(), loss=distilled, plan=QUICK, sample=sample, device="cpu")
    run.step(batch())
    assert "no plan could be tried: loss: holds the module Linear, which trials" in run.because


@pytest.mark.parametrize("sampled", [True, False])
def test_a_batch_that_the_module_writes_into_is_the_users(sampled):
    class Adding(nn.Linear):
        def forward(self, x):
            return super().forward(x.add_(1))

    given = batch()
    before = given[0].clone()
    run = sl.climb(Adding(6, 3), loss="cross_entropy", plan=QUICK, device="cpu",
                   sample=given if sampled else None)  # fmt: skip
    if sampled:
        assert torch.equal(given[0], before)
    run.step(given)
    assert torch.equal(given[0], before + 1) and "the fastest of 2 tried here" in run.because


def test_a_forward_that_was_replaced_by_a_function_is_not_tried():
    module = Net()
    forward = module.forward
    module.forward = lambda x: forward(x) * 2
    run = sl.climb(module, loss="cross_entropy", plan=QUICK, sample=batch(), device="cpu")
    assert "model: forward was replaced by a function, which a copy would share" in run.because
    assert module.norm.num_batches_tracked == 0 and module.calls == 0


def test_a_function_in_an_attribute_leaves_buffers_as_they_were():
    class Through(Net):
        def forward(self, x):
            return self.last(torch.relu(self.through(self.first(x))))

    module = Through()
    module.through = lambda x: module.norm(x)  # also in a copy
    sl.climb(module, loss="cross_entropy", plan=QUICK, sample=batch(), device="cpu")
    assert module.norm.num_batches_tracked == 0


def test_parameters_that_are_made_from_the_sample_are_tried():
    module = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(3))
    run = sl.climb(module, loss="cross_entropy", plan=QUICK, sample=batch(), device="cpu")
    assert "the fastest of 2 tried here" in run.because


class Large(Net):
    """Whose device has memory for three rows."""

    def forward(self, x):
        if len(x) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return self.last(torch.relu(self.first(x)))


def large():
    torch.manual_seed(0)
    return Large()


def test_a_batch_too_large_for_every_plan_is_tried_in_micro_batches():
    run, losses, *_ = train(QUICK, sampled=True, module=large())
    assert run.plan.batch.micro == 2 and "the fastest of 2 tried here" in run.because
    again, *_ = train(QUICK, sampled=True, module=large())
    assert again.plan == run.plan and "(tried 20" in again.because
    _, wanted, *_ = train(str(run.plan), sampled=True, module=large())
    assert losses == wanted


def test_a_micro_batch_that_is_written_is_kept_where_it_is_too_large():
    run, *_ = train(f"{QUICK} micro=4", sampled=True, module=large())
    assert run.plan.batch.micro == 4 and "no plan could be tried" in run.because
    assert not any("micro=2" in event for event in run.events)


def test_a_loss_that_is_not_a_number_everywhere_drops_no_plan():
    nan = {"loss": float("nan"), "norm": float("nan")}
    held = trial("bf16 compile=whole", 50, **nan).checked_against(trial("bf16", 100, **nan))
    assert not held.dropped


def test_a_budget_given_twice_is_refused():
    with pytest.raises(PlanError, match="^tune: given twice, as 5 and 6. Keep one."):
        train("auto tune=5 tune=6", sampled=True)


def test_a_precision_that_is_written_is_kept():
    run, *_ = train("auto bf16 compile=off tune=60", sampled=True)
    assert str(run.plan).startswith("bf16") and "bf16 was asked for" in run.because


@pytest.mark.parametrize("plan", [3, "fp32 zero3 micro=4 tensor=8"])
def test_a_remembered_plan_that_is_none_of_those_tried_is_not_believed(plan, capsys):
    train(QUICK, sampled=True)
    remember(plan)
    capsys.readouterr()
    train(QUICK, sampled=True)
    assert "tuning 2 of 2" in capsys.readouterr().err


@pytest.fixture
def device_that_varies(monkeypatch):
    """A processor repeats anyway; here it is asked as a GPU is."""
    asked = lambda self, plan: "exact" not in self.written and not plan.exact.runs  # noqa: E731
    monkeypatch.setattr("stepladder.train.tuning.tuner.Tuner.may_repeat", asked)


def test_the_same_bits_are_kept_where_they_cost_nothing(device_that_varies, monkeypatch, capsys):
    monkeypatch.setattr("stepladder.train.tuning.tuner.FREE", 1e6)
    run, losses, state, _ = train(QUICK, sampled=True)
    assert run.plan.exact.free and "exact=free" in str(run.plan)
    assert "the same bits in every run cost nothing here" in run.because
    assert "tuning, the same bits in every run: fp32" in capsys.readouterr().err
    again, *_ = train(QUICK, sampled=True)  # remembered
    assert again.plan == run.plan and "tuning" not in capsys.readouterr().err
    _, wanted, plain_state, _ = train(str(run.plan), sampled=True)
    assert losses == wanted
    assert all(torch.equal(state[name], plain_state[name]) for name in plain_state)


def test_the_same_bits_are_left_where_they_cost_something(device_that_varies, monkeypatch):
    monkeypatch.setattr("stepladder.train.tuning.tuner.FREE", 0.0)
    run, *_ = train(QUICK, sampled=True)
    assert not run.plan.exact.runs and "same bits" not in run.because
    assert any("the same bits in every run cost" in event for event in run.events)


@pytest.mark.parametrize("word", ["exact=none", "exact=runs"])
def test_what_is_written_of_exactness_is_kept(word, device_that_varies, monkeypatch):
    monkeypatch.setattr("stepladder.train.tuning.tuner.FREE", 1e6)
    run, *_ = train(f"{QUICK} {word}", sampled=True)
    assert not run.plan.exact.free and run.plan.exact.runs == (word == "exact=runs")


class Unordered(nn.Module):
    """Of an operator that torch has no deterministic algorithm for."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        made = torch.empty(3, dtype=x.dtype).put_(torch.arange(3), torch.zeros(3))
        return self.last(x) + made


def test_an_operator_without_an_order_runs_where_the_same_bits_are_only_free():
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        train("fp32 exact=free", sampled=False, module=Unordered())
    with pytest.raises(PlanError, match="exact: put_"):
        train("fp32 exact=runs", sampled=False, module=Unordered())


def test_a_step_is_not_taken_twice_where_the_same_bits_are_only_free():
    with pytest.raises(PlanError, match="recheck=2 compares bits"):
        train("fp32 exact=free recheck=2", sampled=False)


@pytest.mark.parametrize(
    ("host", "left", "outcome"),
    [
        (0.009, 60, ""),
        (0.001, 60, "the host needs 10% of a step, and would gain nothing"),
        (0.009, 0, "it starts in about 5 s, and 0 are left"),
    ],
)
def test_steps_are_recorded_where_they_wait_for_the_host(host, left, outcome, monkeypatch):
    tried = []
    monkeypatch.setattr(
        "stepladder.train.tuning.contest.try_plan",
        lambda plan, *rest: (tried.append(plan) or trial(str(plan), 4), None),
    )
    monkeypatch.setattr("stepladder.train.tuning.contest.Contest.make_room", lambda self: None)
    tuner = make_tuner(
        ["tune=60"], torch.device("cuda"), place=Place(), whole=True, exact=False, compiles=True
    )

    def contest():
        began = time.perf_counter() - 60 + left
        return Contest(nn.Linear(1, 1), None, None, None, CPU, 60, tuner.say, tuner.begin, began)

    base = trial("bf16 compile=whole kernels=on", 10)
    base = replace(base, host_seconds=host, first_seconds=5.0)
    first = contest()
    tuner.try_recorded(first, base)
    [made] = first.trials
    assert str(made.plan).startswith("bf16 compile=whole kernels=layout,matmuls graphs=on")
    assert made.dropped == outcome and len(tried) == (not outcome)
    tuner.try_recorded(first, base)
    assert len(first.trials) == 1  # not tried twice
    for other in ("bf16", "bf16 compile=blocks"):
        tuner.try_recorded(first, replace(trial(other, 10), host_seconds=host))
    assert len(first.trials) == 1
    tuner.written = frozenset({"graphs"})
    again = contest()
    tuner.try_recorded(again, base)
    assert not again.trials


def test_on_a_terminal_a_plan_is_named_while_it_is_tried(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    train(QUICK, sampled=True)
    shown = capsys.readouterr().err
    assert "tuning 2 of 2: fp32 kernels=on: …\rtuning 2 of 2: fp32 kernels=on: " in shown
