"""Optimizers that are given as code train as in a plain loop, on every rung, and are resumed."""

from functools import partial

import pytest
import torch
from torch import nn

from stepladder.errors import ModelError, PlanError, RecordError
from stepladder.rungs import ParameterShard
from stepladder.train import climb
from stepladder.train.checkpointing.sharded_state import PLAIN, shards_of_optimizer_state
from tests.ranks import run
from tests.soak import soak_after
from tests.train.toys import distance, net, pairs, same_bits

STEPS = 5
TABLE = torch.arange(64)


class Lion(torch.optim.Optimizer):
    """A rule of signs as people write it: a momentum, a table's index, a number of Python, and a
    count in the group."""

    def __init__(self, params, lr=1e-2, decay=0.0):
        super().__init__(params, {"lr": lr, "decay": decay, "taken": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["taken"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p]
                if not kept:
                    kept["momentum"], kept["steps"] = torch.zeros_like(p), 0
                    kept["index"] = torch.zeros((), dtype=torch.int64)
                kept["steps"] += 1
                kept["index"] += 1
                faded = group["lr"] / (kept["steps"] + group["taken"] + TABLE[kept["index"]])
                p.sub_(faded * (0.9 * kept["momentum"] + 0.1 * p.grad).sign())
                p.sub_(faded * group["decay"] * p)
                kept["momentum"].mul_(0.99).add_(p.grad, alpha=0.01)


class AtOnce(torch.optim.Optimizer):
    """Makes its state when it is made, and not in its first step."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["mean"] = torch.full_like(p, 0.5)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.state[p]["mean"].lerp_(p.grad, 0.1))


class Counting(torch.optim.Optimizer):
    """Keeps nothing for a parameter: a number and a table in its group, a number under a text, and
    from its third step on more."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "table": [1.0, 1.0]})

    @torch.no_grad()
    def step(self):
        shared = self.state["shared"]
        shared["taken"] = shared.get("taken", 0) + 1
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["table"] = [group["table"][1], group["table"][0] + group["count"]]
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / (shared["taken"] + group["table"][1]))
                if shared["taken"] > 2:
                    late = self.state[p].setdefault("late", torch.zeros_like(p))
                    p.sub_(1e-3 * late.add_(p.grad))


class Scaled(torch.optim.Optimizer):
    """LARS-like: the step of a matrix follows the norm of the whole matrix."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm() * p.grad / p.grad.norm())


class Coupled(Scaled):
    """One step size for all parameters together."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            whole = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / whole)


class Noisy(Scaled):
    """Langevin dynamics."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (p.grad + torch.randn_like(p)))


def grouped(params):
    """By shape, with rates and decays that differ."""
    params = list(params)
    vectors = {"params": [p for p in params if p.dim() < 2], "lr": 0.003, "weight_decay": 0.0}
    matrices = {"params": [p for p in params if p.dim() > 1]}
    return torch.optim.NAdam([matrices, vectors], lr=0.01, weight_decay=0.1)


KINDS = {
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.9, centered=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.1),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "fused Adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True, fused=True),
    "Lion": partial(Lion, decay=0.1),
    "AtOnce": AtOnce,
    "Adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "Counting": Counting,
    "grouped": grouped,
}


def plain(make, steps=STEPS, clip=None, module=None):
    """The oracle: torch alone, on whole batches."""
    module = net(1) if module is None else module
    optimizer = make(module.parameters())
    for x, y in pairs(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return module


def start(optimizer, plan="fp32", module=None, **how):
    module = net(1) if module is None else module
    given = optimizer(module.parameters()) if how.pop("instance", False) else optimizer
    return climb(
        module, loss="cross_entropy", optimizer=given, plan=plan, device="cpu", **how
    )  # fmt: skip


@pytest.mark.parametrize("instance", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_optimizer_trains_as_in_a_plain_loop(kind, instance):
    taken = start(KINDS[kind], instance=instance)
    for batch in pairs(STEPS):
        taken.step(batch)
    assert same_bits(taken.module, plain(KINDS[kind]))
    parts = start(KINDS[kind], "fp32 micro=2", instance=instance, clip=0.1)
    for batch in pairs(STEPS):
        parts.step(batch)
    assert distance(parts.module, plain(KINDS[kind], clip=0.1)) < 1e-4


LAYOUTS = ["ddp", "zero1", "zero3", "pipeline=2", "zero2", "tensor=2"]


class Deep(nn.Module):
    """Blocks for a pipeline and pairs of linears for tensor parallelism."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.fc2(torch.tanh(self.fc1(x)))


def deep():
    torch.manual_seed(3)
    return Deep()


def trained_on_ranks(layout, kind, instance, folder):
    taken = start(KINDS[kind], f"fp32 {layout}", deep(), instance=instance, sample=pairs(1)[0])
    for batch in pairs(STEPS):
        taken.step(batch, rows="global").read()
    taken.save(folder)
    return [group["label"] for group in taken.optimizer.param_groups]


@pytest.mark.parametrize("layout", soak_after(LAYOUTS, gate=4))
def test_ranks_train_as_a_plain_loop_and_one_device_goes_on(layout, tmp_path):
    at_once = (("AtOnce", True),) if layout in ("zero1", "zero3", "tensor=2") else ()
    for kind, instance in (("grouped", True), ("Lion", False), *at_once):
        folder = tmp_path / kind
        run(trained_on_ranks, 2, layout, kind, instance, folder, init=False)
        again = start(KINDS[kind], module=deep(), instance=instance)
        again.load(folder)
        assert not any("no use to this one" in event for event in again.events)
        assert distance(again.module, plain(KINDS[kind], module=deep())) < 1e-5
        for batch in pairs(2 * STEPS)[STEPS:]:
            again.step(batch)
        assert distance(again.module, plain(KINDS[kind], 2 * STEPS, module=deep())) < 1e-4


class Tied(nn.Module):
    """Its head is its embedding: in a pipeline both stages update a copy."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).transpose(1, 2)


def tied_on_ranks(folder):
    torch.manual_seed(3)
    module, tokens = Tied(), torch.randint(0, 5, (8, 6))
    optimizer = grouped(module.parameters())
    batch = (tokens, tokens.flip(1))
    how = {"loss": torch.nn.CrossEntropyLoss(), "plan": "fp32 pipeline=2", "device": "cpu"}
    taken = climb(module, optimizer=optimizer, sample=batch, **how)
    for _ in range(STEPS):
        taken.step(batch, rows="global").read()
    taken.save(folder)


def test_both_copies_of_a_tied_matrix_are_updated(tmp_path):
    run(tied_on_ranks, 2, tmp_path, init=False)
    torch.manual_seed(3)
    module, tokens = Tied(), torch.randint(0, 5, (8, 6))
    optimizer = grouped(module.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(tokens), tokens.flip(1)).backward()
        optimizer.step()
    again = climb(Tied(), loss="cross_entropy", optimizer="sgd lr=1", plan="fp32", device="cpu")
    again.load(tmp_path)
    assert distance(again.module, module) < 1e-5


def resumed_on_ranks(folder):
    """Saved by one device, resumed in slices: what was remembered is there in slices."""
    again = start(KINDS["Lion"], "fp32 zero3", deep(), instance=True)
    again.load(folder)
    for batch in pairs(2 * STEPS)[STEPS:]:
        again.step(batch, rows="global").read()
    again.save(folder / "after")


def test_a_run_of_one_device_goes_on_in_slices(tmp_path):
    before = start(KINDS["Lion"], module=deep())
    for batch in pairs(STEPS):
        before.step(batch)
    before.save(tmp_path)
    run(resumed_on_ranks, 2, tmp_path, init=False)
    after = start(KINDS["Lion"], module=deep())
    after.load(tmp_path / "after")
    assert distance(after.module, plain(KINDS["Lion"], 2 * STEPS, module=deep())) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_to_the_last_bit(kind, tmp_path):
    halves = start(KINDS[kind])
    for batch in pairs(2 * STEPS)[:STEPS]:
        halves.step(batch)
    halves.save(tmp_path)
    again = start(KINDS[kind], instance=True)
    again.load(tmp_path)
    for batch in pairs(2 * STEPS)[STEPS:]:
        again.step(batch)
    assert same_bits(again.module, plain(KINDS[kind], 2 * STEPS))


def test_an_instance_that_has_learned_goes_on_from_what_it_knows():
    module = plain(partial(torch.optim.RMSprop, lr=0.01))
    optimizer = torch.optim.RMSprop(module.parameters(), lr=0.01)
    other = net(1)
    known = torch.optim.RMSprop(other.parameters(), lr=0.01)
    for x, y in pairs(STEPS):
        known.zero_grad()
        torch.nn.functional.cross_entropy(other(x), y).backward()
        known.step()
    optimizer.load_state_dict(known.state_dict())
    taken = climb(module, loss="cross_entropy", optimizer=optimizer, plan="fp32", device="cpu")
    for batch in pairs(2 * STEPS)[STEPS:]:
        taken.step(batch)
    assert taken.optimizer is optimizer
    assert same_bits(taken.module, plain(partial(torch.optim.RMSprop, lr=0.01), 2 * STEPS))


@pytest.mark.parametrize("sampled", [True, False])
def test_trials_of_auto_leave_an_instance_as_it_was(sampled, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = net(1)
    optimizer = KINDS["Lion"](module.parameters())
    (x, y), *others = pairs(STEPS)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()
    taken = climb(
        module, loss="cross_entropy", optimizer=optimizer, plan="auto compile=off tune=60",
        device="cpu", sample=others[0] if sampled else None,
    )  # fmt: skip
    for batch in others:
        taken.step(batch)
    assert "tuning 2 of 2" in capsys.readouterr().err
    assert optimizer.param_groups[0]["taken"] == STEPS
    assert distance(module, plain(KINDS["Lion"])) < 1e-5


def test_a_first_step_that_is_left_out_leaves_a_fused_momentum_whole():
    fused = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
    taken = start(fused, instance=True, nonfinite="skip")
    bad = (torch.full((8, 16), float("nan")), torch.zeros(8, dtype=torch.long))
    for batch in (bad, *pairs(STEPS)):
        taken.step(batch)
    assert same_bits(taken.module, plain(fused))


def test_a_run_is_put_back_where_it_was(tmp_path):
    """Settings, rates and state that have changed since the checkpoint are as they were in it."""
    for kind in ("Counting", "Lion", "fused Adam"):
        taken = start(KINDS[kind])
        taken.save(tmp_path / kind)
        taken.lr = 0.03
        for batch in pairs(STEPS):
            taken.step(batch)
        taken.load(tmp_path / kind)
        for batch in pairs(STEPS):
            taken.step(batch)
        assert same_bits(taken.module, plain(KINDS[kind]))


def test_settings_that_differ_from_the_saved_ones_are_told(tmp_path):
    taken = start(partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    taken.step(pairs(1)[0])
    taken.save(tmp_path)
    again = start(partial(torch.optim.SGD, lr=0.1, momentum=0.5, nesterov=True))
    again.load(tmp_path)
    told = [event for event in again.events if event.startswith("group 0: ")]
    assert told == ["group 0: nesterov was False and is True now"]


def test_a_rate_in_a_tensor_is_its_owners():
    def halved(parameters, lr):
        optimizer = torch.optim.AdamW(parameters, lr=lr)
        optimizer.register_step_post_hook(lambda *_: lr.mul_(0.5))
        return optimizer

    taken = start(lambda p: halved(p, torch.tensor(0.1)))
    for batch in pairs(STEPS):
        taken.step(batch)
    assert same_bits(taken.module, plain(lambda p: halved(p, torch.tensor(0.1))))
    assert taken.lr == pytest.approx(0.1 / 2**STEPS)
    taken.lr = 0.25
    assert taken.lr == 0.25


def test_what_no_checkpoint_holds_is_told():
    class Own(Lion):
        def __init__(self, params):
            super().__init__(params)
            self.trend = torch.zeros(2)

        def step(self):
            self.trend += 1
            super().step()

        def state_dict(self):
            return {**super().state_dict(), "trend": self.trend}

    module = net(1)
    given = Own(module.parameters())
    taken = start(given, module=module)
    assert any("Own has a state_dict of its own, which is not called" in e for e in taken.events)
    assert any("Own changes its attribute 'trend', which no checkpoint" in e for e in taken.events)
    assert given.trend.tolist() == [0, 0]
    assert not start(KINDS["RMSprop"]).events


def test_state_under_what_is_no_text_is_refused_when_it_is_saved(tmp_path):
    taken = start(Lion)
    taken.optimizer.state[3] = {"x": 1}
    with pytest.raises(RecordError, match="a int under 3 and no parameter, which a checkpoint"):
        taken.save(tmp_path)


def test_a_plan_tells_its_class_rate_and_state():
    taken = start(KINDS["RMSprop"], clip=2)
    assert str(taken.plan.optimizer) == "python:RMSprop lr=0.01 clip=2.0 state=3"
    assert type(taken.plan).parse(str(taken.plan)) == taken.plan
    assert start(lambda p: Lion(p)).plan.optimizer.name == "python:function"


def test_parameters_that_are_left_out_stay_and_are_told():
    module = net(1)
    first = module.first.weight.detach().clone()
    taken = start(torch.optim.RMSprop(module.last.parameters()), module=module)
    taken.step(pairs(1)[0])
    assert torch.equal(first, module.first.weight)
    told = "RMSprop leaves out 2 trainable parameters, such as 'first.weight': they stay"
    assert any(told in event for event in taken.events)


def vectors_alone(parameters):
    """A function that chooses by shape, as one that leaves matrices to another rule would."""
    return torch.optim.SGD([p for p in parameters if p.dim() < 2], lr=0.1)


def learned_in_slices(make):
    taken = start(make, "fp32 zero1", deep())
    for batch in pairs(STEPS):
        taken.step(batch, rows="global").read()
    return taken.module.state_dict()


@pytest.mark.parametrize("make", [grouped, vectors_alone])
def test_a_function_groups_whole_parameters_where_ranks_hold_slices(make):
    found, _ = run(learned_in_slices, 2, make, init=False)
    wanted = plain(make, module=deep()).state_dict()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


def bad_optimizers():
    module = net(1)
    yield module, torch.optim.LBFGS, "LBFGS.step needs 'closure', and a run computes gradients"
    yield module, 3, "int is neither an optimizer nor the text of one"
    yield module, lambda p: None, r"function\(parameters\) returned NoneType, not an optimizer"
    yield (
        module,
        partial(Lion, beta=1),
        r"Lion\(parameters\) raised TypeError: .*'beta'.* Give what it needs: functools.partial",
    )
    yield (
        module,
        partial(torch.optim.Muon, lr=0.1),
        r"2D parameters.* pick them: lambda p: Muon\(\[one for one in p if one.dim\(\) == 2\]\);",
    )
    yield module, lambda: None, r"but 1 was given\. function is given a list of parameters: lambda"
    yield (
        module,
        torch.optim.SGD(net().parameters()),
        "4 of 4 parameters in group 0 of SGD belong neither to the module nor to its loss",
    )
    others = net().parameters()
    yield module, lambda p: torch.optim.SGD(others), "was given parameters and made an optimizer of"
    rateless = torch.optim.SGD(module.parameters())
    del rateless.param_groups[0]["lr"]
    yield module, rateless, "SGD has groups of parameters without 'lr'"
    yield module, partial(Lion, lr=float("nan")), "optimizer: the learning rate of Lion is nan"
    yield module, lambda p: wrapped(Lion(p)), "Lion holds another optimizer in 'inner', whose state"
    yield module, "python:Lion", "python:Lion stands for code, and a plan holds none"
    yield module, "python:Lion wd=1", "python:Lion is code, and 'wd' is set there"


def wrapped(optimizer):
    optimizer.inner = torch.optim.SGD(optimizer.param_groups[0]["params"])
    return optimizer


@pytest.mark.parametrize("case", range(13))
def test_what_cannot_be_an_optimizer_is_refused_in_one_line(case):
    module, given, said = list(bad_optimizers())[case]
    with pytest.raises(PlanError, match=said):
        start(given, module=module)


def test_what_its_step_raises_is_told_in_one_line():
    module = net(1)
    taken = start(torch.optim.SparseAdam(module.parameters()), module=module)
    with pytest.raises(ModelError, match="optimizer: SparseAdam.step raised RuntimeError: .*dense"):
        taken.step(pairs(1)[0])


def test_state_that_no_file_can_hold_is_refused_when_it_is_saved(tmp_path):
    taken = start(Lion)
    taken.step(pairs(1)[0]).read()
    taken.optimizer.state[taken.module.first.bias]["seen"] = {object()}
    with pytest.raises(RecordError, match="keeps a builtins.object in 'steps, seen' for 'first.bi"):
        taken.save(tmp_path)


def test_bytes_of_plain_state_are_no_slice_of_a_parameter_that_is_as_long():
    world = start(Lion).world
    whole = nn.Parameter(torch.zeros(40))
    shard = ParameterShard("w", whole, nn.Parameter(torch.zeros(20)), ("shard",), slice(20, 40))
    kept = torch.zeros(20, dtype=torch.uint8)
    (saved,) = shards_of_optimizer_state(f"optimizer/w/{PLAIN}", shard, kept, True, world)
    assert (saved.shape, saved.slice.start) == ((20,), (0,))


class Nested(Scaled):
    """Momentum in a dictionary of the state."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", {"momentum": torch.zeros_like(p)})
                p.sub_(group["lr"] * kept["momentum"].mul_(0.9).add_(p.grad))


class Late(Scaled):
    """Follows the norm of a matrix from its fifth step on, if it is large."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p]
                kept["step"] = kept.get("step", 0) + 1
                norm = p.grad.norm() if kept["step"] > 4 and p.numel() > 40 else 1.0
                p.sub_(group["lr"] * p.grad / norm)


def hooked(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def shorten(optimizer, *_):
        for p in optimizer.param_groups[0]["params"]:
            p.grad.div_(p.grad.norm())

    optimizer.register_step_pre_hook(shorten)
    return optimizer


def halves(parameters):
    """Groups by position, as a function may make them."""
    middle = len(parameters) // 2
    slow = {"params": parameters[middle:], "lr": 0.01}
    return torch.optim.SGD([{"params": parameters[:middle]}, slow], lr=0.1)


def refused_on_ranks():
    found = {}
    module = deep()
    try:
        start(hooked(module), "fp32 zero3", module)
    except PlanError as refused:
        found["hooked zero3"] = refused.problem
    start(halves, "fp32 zero1", deep())
    for kind, layout in [
        (Nested, "zero1"), (Late, "zero3"),
        (Scaled, "zero1"), (Scaled, "tensor=2"), (Coupled, "pipeline=2"), (Noisy, "ddp"),
        (torch.optim.Adafactor, "zero3"), (torch.optim.SparseAdam, "zero2"),
    ]:  # fmt: skip
        try:
            start(kind, f"fp32 {layout}", deep(), sample=pairs(1)[0])
        except PlanError as refused:
            found[f"{kind.__name__} {layout}"] = refused.problem
    module = deep()
    matrices = torch.optim.Muon([p for p in module.parameters() if p.dim() == 2])
    try:
        start(matrices, "fp32 zero2", module)
    except PlanError as refused:
        found["Muon zero2"] = refused.problem
    start(Scaled, "fp32 pipeline=2", deep(), sample=pairs(1)[0])  # whole matrices, each its own
    start(Scaled, "fp32 ddp", deep())
    return found


def test_an_optimizer_that_ranks_cannot_share_is_refused():
    found, _ = run(refused_on_ranks, 2, init=False)
    sliced = "steps for a slice of a parameter, and shard=2 slices them"
    assert sliced in found["Scaled zero1"] and sliced in found["Adafactor zero3"]
    assert "and tensor=2 slices them" in found["Scaled tensor=2"]
    assert sliced in found["hooked zero3"] and sliced in found["Late zero3"]
    inside = "Nested keeps a tensor inside of 'kept', of which each rank in shard=2 has a part"
    assert found["Nested zero1"] == inside
    assert "for a parameter by itself, and pipeline=2 parts them" in found["Coupled pipeline=2"]
    assert "Noisy draws random numbers, and copies in replicate=2" in found["Noisy ddp"]
    assert "small matrices, so nobody knows whether shard=2 fits" in found["SparseAdam zero2"]
    assert "Muon" in found["Muon zero2"] and "a slice of a parameter, and" in found["Muon zero2"]


def test_masters_need_an_optimizer_in_words():
    with pytest.raises(PlanError, match="Lion keeps no masters, and bf16-master needs them"):
        start(Lion, "bf16-master")


class ScaledLinear(nn.Linear):
    """With a parameter without dimensions, of which only one rank owns the number."""

    def __init__(self):
        super().__init__(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return super().forward(x) * self.scale


def learned_on_one_device(steps):
    torch.manual_seed(0)
    module, x, y = ScaledLinear(), torch.randn(8, 4), torch.randint(0, 3, (8,))
    optimizer = torch.optim.NAdam(module.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module, optimizer, (x, y)


def go_on_sharded():
    module, optimizer, batch = learned_on_one_device(2)
    taken = climb(
        module, loss="cross_entropy", optimizer=optimizer, plan="fp32 zero1", device="cpu"
    )
    for _ in range(2):
        taken.step(batch, rows="global").read()
    return [p.detach() for p in module.parameters()]


def test_counts_of_a_parameter_without_dimensions_are_not_sliced():
    """NAdam counts in numbers that look like moments of such a parameter."""
    expected = [p.detach() for p in learned_on_one_device(4)[0].parameters()]
    for found in run(go_on_sharded, 2):
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected))
