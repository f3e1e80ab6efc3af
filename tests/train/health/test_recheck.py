"""Steps taken twice: a planted flip is found and its rank named, and the run's bits are as ever."""

import random
from functools import cache, partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import stepladder.rungs.data_parallel.zero1 as zero1
import stepladder.rungs.exact_ranks.gradient_tree as gradient_tree
import stepladder.train.health.own_gradients as own_gradients
from stepladder.errors import WorldError
from stepladder.train import climb
from stepladder.train.health.recheck import STAGES, Recheck
from stepladder.train.health.replica_check import LAST
from stepladder.train.in_loop.ema import EMA
from tests.ranks import run
from tests.soak import soak_after
from tests.train.checkpointing.state_in_attributes import KINDS, Iterates, Plain, kind_name, made
from tests.train.checkpointing.state_in_attributes import batches as odd_batches
from tests.train.toys import Net, llama, net, pairs, ragged

ADAM = "adamw lr=0.01 clip=1.0"
STEPS = 6  # with recheck=2 the steps 1, 3 and 5 are taken twice
TEST = "test the memory, processor and network of that machine"


class Brightening(Plain):
    def forward(self, x):
        return super().forward(x.add_(0.5).clamp_(max=1))


class Attempts:
    """Counts tries of a run, so that a fault can be planted in one of them."""

    def __init__(self, monkeypatch):
        self.now, self.done = -1, set()
        take = Recheck.attempt

        def counted(recheck, *given):
            self.now += 1
            return take(recheck, *given)

        monkeypatch.setattr(Recheck, "attempt", counted)

    def is_first(self, number, rank=1):
        """Whether this is the first time that somebody asks in this try, on this rank."""
        here = dist.get_rank() if dist.is_initialized() else 0
        due = self.now == number and here == rank and number not in self.done
        self.done |= {number} if due else set()
        return due


def flip(tensor):
    """One bit, without a word to autograd."""
    tensor.data.reshape(-1)[:1].view(torch.uint8)[-1] ^= 1


def flip_weight(taken, attempts, number):
    def hook(module, given):
        if attempts.is_first(number):
            flip(module.weight)

    taken.module.last.register_forward_pre_hook(hook)


def flip_gradient(taken, attempts, number):
    def seen(gradient):
        if attempts.is_first(number):
            flip(gradient)

    def hook(module, given, output):
        output.register_hook(seen)

    taken.module.last.register_forward_hook(hook)


def flip_message(taken, attempts, number, monkeypatch):
    """What arrives at rank 1 is not what was sent."""
    plan = taken.plan
    if not plan.zero and not plan.exact.slices:

        def reduce(state, bucket):
            dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
            if attempts.is_first(number):
                flip(bucket.buffer())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        taken.climbed.forward_backward.gradient_sync.module.register_comm_hook(None, reduce)
        return
    where, name = (zero1, "gather_tensor") if plan.zero == 1 else (own_gradients, "scatter_tensor")
    if plan.exact.slices:
        where, name = gradient_tree.dist, "all_to_all_single"
    send = getattr(where, name)

    def received(output, *given, **named):
        done = send(output, *given, **named)
        if attempts.is_first(number):
            flip(output)
        return done

    monkeypatch.setattr(where, name, received)


def bits(taken):
    """All parameters, buffers and optimizer state of this rank."""
    held = [s.parameter.detach() for s in taken.climbed.shards] + list(taken.module.buffers())
    held += [v for kept in taken.optimizer.state.values() for v in kept.values()]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in held]
    return [t.clone() for t in local]


def same(mine, other):
    return len(mine) == len(other) and all(map(torch.equal, mine, other))


def train(plan, *, faulty=False, module=net, batches=pairs):
    taken = climb(module(), loss="cross_entropy", plan=plan, optimizer=ADAM, device="cpu")
    with pytest.MonkeyPatch.context() as monkeypatch:
        if faulty:
            attempts = Attempts(monkeypatch)
            flip_weight(taken, attempts, 0)  # in step 1, the first time; two more tries follow
            flip_gradient(taken, attempts, 4)  # in step 3, the second time
            flip_message(taken, attempts, 6, monkeypatch)  # in step 5, the first time
        losses = [taken.step(batch, rows="global").loss for batch in batches(STEPS)]
    return bits(taken), losses, [event for event in taken.events if "differed" in event]


def with_dropout():
    return net(dropout=0.1)


def compare(plan, **how):
    """The events of a clean and of a disturbed run; None where bits are not the plain plan's."""
    plain, losses, _ = train(plan, **how)
    found = []
    for faulty in (False, True) if how["module"] is with_dropout else (False,):
        mine, told, events = train(f"{plan} recheck=2", faulty=faulty, **how)
        found.append(events if same(mine, plain) and told == losses else None)
    return found


OWN, SUM = "gradients of its own rows", "gradients"
AFTER = "updated parameters and optimizer state"
PLANS = {  # what is said of the weight, of the gradient and of the message
    "bf16 ddp exact=runs accumulate=2": (
        f"rank 1 differed in parameters before the update, loss, {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {SUM}, {AFTER}",
    ),
    "fp16 zero1 exact=runs": (
        f"rank 1 differed in parameters before the update, loss, {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {OWN}, {SUM}, {AFTER}",
        "rank 1 differed in updated parameters",
    ),
    "fp32 zero3 exact=runs accumulate=2": (
        f"rank 1 differed in loss, {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {SUM}, {AFTER}",
    ),
    "fp32 zero2 exact=ranks:4": (
        f"rank 1 differed in loss, {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {OWN}, {SUM}, {AFTER}",
        f"rank 1 differed in {SUM}, {AFTER}",
    ),
}
CUT = ("fp32 tensor=2 exact=runs", "fp32 pipeline=2 micro=3 exact=runs")


@cache
def on_two_ranks(plan):
    module, batches = (with_dropout, pairs) if plan in PLANS else (llama, ragged)
    return run(partial(compare, module=module, batches=batches), 2, plan, init=False)


@pytest.mark.parametrize("plan", soak_after(reversed(PLANS), gate=2))
def test_flips_on_one_rank_are_named_and_leave_no_trace(plan):
    for found in on_two_ranks(plan):
        told = zip((1, 3, 5), ("first", "second", "first"), PLANS[plan])
        assert found[1] == [
            f"step {step}: {said} the {which} time this step was taken; two of three tries agree, "
            f"and the run goes on from them: {TEST}"
            for step, which, said in told
        ]


@pytest.mark.parametrize("plan", soak_after([*CUT, *reversed(PLANS)], gate=len(CUT) + 2))
def test_a_clean_run_says_nothing_and_has_the_bits_of_the_plan_without_the_word(plan):
    for found in on_two_ranks(plan):
        assert found[0] == []


class Odd(Net):
    """Keeps something in every place that a module has for it."""

    def __init__(self):
        super().__init__(dropout=0.2)
        self.norm, self.calls, self.seen = nn.BatchNorm1d(16), 0, []
        self.drawn = torch.Generator().manual_seed(3)
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen.append(random.random() + np.random.rand())
        self.largest = torch.maximum(self.largest, x.max())  # another tensor each time
        noise = torch.randn(16, generator=self.drawn) + self.seen[-1]
        return super().forward(self.norm(x * self.frozen + 0.1 * noise))


class Counting(torch.optim.SGD):
    """Counts its steps in a place of its own, and learns less with each."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, lr=lr, momentum=0.9)
        self.taken = 0

    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            group["lr"] = group["lr"] / self.taken
            super().step()
            group["lr"] = group["lr"] * self.taken


def make_loss():
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        return nn.functional.cross_entropy(outputs, targets) / len(calls)

    return loss


def train_odd(words):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    module = Odd()
    taken = climb(
        module, loss=make_loss(), plan=f"fp32 exact=runs {words}", optimizer=Counting,
        device="cpu",
    )  # fmt: skip
    average = EMA(taken, 0.9)
    for batch in pairs(4):
        taken.step(batch)
        average.update()
    kept = [*bits(taken), *average.tensors().values()]
    return kept, (module.calls, module.seen, taken.optimizer.taken, taken.position)


def test_nothing_that_a_step_changes_is_changed_twice():
    plain, told = train_odd("")
    mine, counted = train_odd("recheck=1")
    assert same(mine, plain) and counted == told


@pytest.mark.parametrize(("kind", "loss"), KINDS, ids=kind_name)
def test_what_user_code_holds_is_put_back_between_the_tries(kind, loss):
    ends = []
    for word in ("", " recheck=2"):
        taken = climb(
            made(kind), loss=loss(), optimizer="sgd lr=0.1", plan=f"fp32 exact=runs{word}",
            device="cpu",
        )  # fmt: skip
        losses = [taken.step(batch).loss for batch in odd_batches()]
        ends.append((losses, [p.tolist() for p in taken.module.parameters()]))
        assert taken.events == []
    assert ends[0] == ends[1]


def test_a_batch_that_the_module_writes_to_is_put_back_too():
    ends = []
    for word in ("", " recheck=2"):
        taken = climb(
            made(Brightening), loss="cross_entropy", optimizer="sgd lr=0.1",
            plan=f"fp32 exact=runs{word}", device="cpu",
        )  # fmt: skip
        given = odd_batches()
        losses = [taken.step(batch).loss for batch in given]
        ends.append((losses, [inputs.tolist() for inputs, _ in given]))
        assert taken.events == []
    assert ends[0] == ends[1]


def test_an_iterator_is_named_where_no_try_can_put_it_back():
    taken = climb(
        made(Iterates), loss="cross_entropy", optimizer="sgd lr=0.1",
        plan="fp32 exact=runs recheck=1", device="cpu",
    )  # fmt: skip
    with pytest.raises(WorldError, match="holds a range_iterator, which no try can put back"):
        taken.step(odd_batches()[0])


def test_a_resumed_run_takes_the_same_steps_twice(tmp_path, monkeypatch):
    taken, resumed = (
        climb(net(dropout=0.1), loss="cross_entropy", plan=f"fp32 exact=runs {word}",
              optimizer=ADAM, device="cpu")
        for word in ("", "recheck=3")
    )  # fmt: skip
    batches, twice = pairs(7), []
    for step, batch in enumerate(batches):
        taken.step(batch)
        if step == 3:
            taken.save(tmp_path)
    resumed.resume(tmp_path)
    take = Recheck.take
    monkeypatch.setattr(
        Recheck, "take", lambda *given: twice.append(given[1].index) or take(*given)
    )
    for batch in batches[4:]:
        resumed.step(batch)
    assert twice == [5]
    assert same(bits(resumed), bits(taken))


def stop(fault):
    """What ranks say of a fault that stays; of one that came between two rechecks."""
    taken = climb(net(), loss="cross_entropy", plan="fp32 ddp exact=runs recheck=2", device="cpu")
    rank, passes = taken.world.place.rank, []

    def hook(module, given, output):
        passes.append(1)
        return output * (1 + len(passes) / 100) if rank == 1 else output

    if fault == "every time":
        taken.module.last.register_forward_hook(hook)
    try:
        for step, batch in enumerate(pairs(4, rows=9)):
            if fault == "between" and step == 2 and rank == 1:
                flip(taken.module.last.weight)
            taken.step(batch, rows="global")
    except WorldError as told:
        return str(told)
    return "nothing"


def stop_each():
    return [stop(fault) for fault in ("every time", "between", "none")]


def test_a_fault_that_stays_or_came_before_stops_every_rank_with_its_name():
    for stays, between, none in run(stop_each, 3, init=False):
        assert stays == (
            f"step 1: taken three times, and rank 1 differed each time: in loss, {OWN}, {SUM}, "
            f"{AFTER}. Go on from {LAST}, and {TEST}."
        )
        assert between == (
            "step 3: the parameters of rank 1 are not those of the other copies. Go on from a "
            "checkpoint of step 2 or before, and test that machine's memory and network."
        )
        assert none == "nothing"


def test_tries_that_start_from_a_spoilt_copy_are_not_counted():
    good, spoilt = [0] * len(STAGES), [1] * len(STAGES)
    with pytest.raises(WorldError) as told:
        Recheck().judge([[good, good], [good, spoilt], [good, spoilt]], 7)
    assert str(told.value) == (
        "step 7: the copy of rank 1's state that a try starts from is not what was copied. "
        f"Go on from {LAST}, and {TEST}."
    )
