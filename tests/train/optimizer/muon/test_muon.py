"""Muon on one rank: against torch's own, against paper, and through bad steps."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from stepladder.errors import PlanError
from stepladder.plan import Optimizer, Precision
from stepladder.train import climb
from stepladder.train.optimizer.muon.newton_schulz import orthogonalise
from stepladder.verify.plain.plain_loop import PlainLoop
from tests.rungs.rank_toys import odd, tokens

from .toys import MUON, NORMUON, apart, batch, begin, make, whole

FORMS = [
    MUON,
    "muon lr=0.05 adamw_lr=1e-3 nesterov=off momentum=0.8 ns_steps=3 adjust=match_rms_adamw",
    NORMUON,
    "muon variant=normuon lr=0.01 adamw_lr=1e-2 betas=0.8,0.9",
    "muon adamw_lr=1e-2 group=*.up.weight:by=adamw group=embedding.weight:by=muon,lr=x0.1",
]


@pytest.mark.parametrize("optimizer", FORMS)
@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_every_form_is_what_paper_says(name, optimizer):
    run, other = begin("fp32 micro=4", optimizer, name), make(name)
    blocks = [f"blocks.{index}" for index in range(2)]
    plain = PlainLoop(
        other, "cross_entropy", Precision.parse("fp32"), Optimizer.parse(optimizer), blocks=blocks
    )
    start = whole(other)
    for step in range(3):
        loss = run.step(batch(step)).loss
        assert loss == pytest.approx(plain.step(*batch(step)).loss, rel=1e-5)
    mine, theirs = whole(run.module), whole(other)
    for key, value in theirs.items():
        moved = (value - start[key]).norm()
        # Biases of keys have no gradient but rounding, of which AdamW makes a step.
        assert "bias" in key or (mine[key] - value).norm() <= 1e-4 * moved, key


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_learns_as_torchs_muon_and_adamw_in_a_loop(adjust, nesterov):
    """torch's multiplies in bfloat16; a run of a float32 plan does not."""
    words = f"muon lr=0.02 adamw_lr=0.01 wd=0.1 momentum=0.9 adjust={adjust}"
    run = begin("fp32 micro=4", f"{words} nesterov={'on' if nesterov else 'off'}")
    other = make()
    named = dict(other.named_parameters())
    matrices = {n for n, p in named.items() if n.startswith("blocks.") and p.ndim == 2}
    muon = torch.optim.Muon(
        [named[n] for n in matrices], lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=nesterov,
        adjust_lr_fn=adjust,
    )  # fmt: skip
    adamw = torch.optim.AdamW(
        [p for n, p in named.items() if n not in matrices], lr=0.01, betas=(0.9, 0.95),
        weight_decay=0.1,
    )  # fmt: skip
    start = whole(other)
    for step in range(3):
        run.step(batch(step)).read()
        inputs, targets = batch(step)
        functional.cross_entropy(other(inputs).flatten(0, 1), targets.flatten()).backward()
        for each in (muon, adamw):
            each.step()
            each.zero_grad()
    for name, parameter in run.module.named_parameters():
        moved = (named[name] - start[name]).norm()
        assert (parameter - named[name]).norm() < 0.05 * moved, name


@pytest.mark.parametrize("plan", ["bf16", "bf16-pure", "fp16"])
def test_in_16_bits_products_are_too(plan):
    run, exact = begin(f"{plan} micro=4"), begin("fp32 micro=4")
    assert run.optimizer.work.exchange.dtype == getattr(torch, run.plan.precision.work)
    for step in range(3):
        run.step(batch(step)).read()
        exact.step(batch(step)).read()
    assert 1e-6 < apart(whole(run.module), whole(exact.module)) < 0.05


@pytest.mark.parametrize(("words", "alone"), [("fp32", False), ("fp32 exact=ranks:4", True)])
def test_a_stack_is_multiplied_at_once_unless_its_size_must_not_matter(words, alone):
    """How a library multiplies a stack may depend on how many matrices it has."""
    run, seen = begin(words), []

    def multiply(stack, steps):
        seen.append(len(stack))
        return orthogonalise(stack, steps)

    run.optimizer.work = replace(run.optimizer.work, orthogonalise=multiply)
    run.step(batch(0)).read()
    assert sum(seen) == 14 and (set(seen) == {1}) == alone


@pytest.mark.parametrize("optimizer", [MUON, NORMUON])
@pytest.mark.parametrize("waits", [True, False])
def test_a_bad_update_leaves_parameters_and_state(optimizer, waits):
    """On a GPU nobody waits for the number that says so: it chooses between old and new."""
    run = begin("fp32", optimizer)
    run.step(batch(0)).read()
    muon = run.optimizer
    before = copy.deepcopy((whole(run.module), [muon.state[one.owned] for one in muon.held]))
    for parameter in run.module.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    if waits:
        muon.grad_scale, muon.found_inf = torch.tensor(2.0), torch.tensor(1.0)
        muon.step()
    else:
        muon.adamw = None  # torch's own, whose fused kernel reads the number
        with torch.no_grad():
            muon.step_matrices(torch.tensor(2.0), torch.tensor(1.0))
    after = whole(run.module), [muon.state[one.owned] for one in muon.held]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    for old, new in zip(before[1], after[1]):
        assert all(torch.equal(old[key], new[key]) for key in old)


def test_what_is_divided_on_the_device_is_what_is_divided_before():
    one, other = begin("fp32"), begin("fp32")
    for run, now in ((one, True), (other, False)):
        draw = torch.Generator().manual_seed(1)
        for parameter in run.module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        muon, divisor = run.optimizer, torch.tensor(3.0)
        muon.adamw = None
        if now:
            with torch.no_grad():
                muon.step_matrices(divisor, torch.tensor(0.0))
        else:
            muon.grad_scale, muon.found_inf = divisor, torch.tensor(0.0)
            muon.step()
    assert apart(whole(one.module), whole(other.module)) < 1e-6
    # Newton-Schulz does not see the size of a direction, momentum does.
    for mine, theirs in zip(one.optimizer.held, other.optimizer.held):
        kept = one.optimizer.state[mine.owned], other.optimizer.state[theirs.owned]
        torch.testing.assert_close(*(state["momentum_buffer"] for state in kept))


@pytest.mark.parametrize(
    "plan", ["offload=optimizer", "zero3 offload=parameters", "exact=runs recheck=2"]
)
def test_state_on_the_host_and_steps_taken_twice_change_nothing(plan):
    run, other = begin(f"fp32 {plan}", NORMUON), begin("fp32", NORMUON)
    try:
        for step in range(3):
            loss = run.step(batch(step)).loss
            assert loss == pytest.approx(other.step(batch(step)).loss, rel=1e-6)
        assert apart(whole(run.module), whole(other.module)) < 1e-5
    finally:
        if dist.is_initialized():  # FSDP2, which fetches parameters, needs a group even of one
            dist.destroy_process_group()


def test_the_rates_of_both_follow_one_schedule():
    run = climb(
        make(), loss="cross_entropy", optimizer=MUON, plan="fp32", rate="linear warmup=4 steps=9"
    )
    run.step(batch(0)).read()
    run.step(batch(1)).read()
    rates = {group["matrix"]: group["lr"] for group in run.optimizer.param_groups}
    assert rates[True] == pytest.approx(run.plan.optimizer.lr * 0.5, rel=1e-6)
    assert rates[False] == pytest.approx(run.plan.optimizer.adamw_lr * 0.5, rel=1e-6)


def test_a_rate_that_is_set_keeps_their_proportion():
    run = begin("fp32")
    run.lr = 0.04
    assert [group["lr"] for group in run.optimizer.param_groups] == [0.04, 0.02]
    assert run.lr == 0.04


def test_the_run_says_what_is_updated_by_which():
    assert begin("fp32").events == [
        "muon updates 14 hidden matrices (0.0 M parameters), and adamw the other 0.0 M"
    ]


def test_a_parameter_that_is_not_used_stays_as_it_is():
    """As torch's optimizers leave it: no decay, no momentum."""
    run = climb(odd(), loss="cross_entropy", optimizer=MUON, plan="fp32", device="cpu")
    unused = tokens(2)[1]  # in which nobody meets token 0
    before = whole(run.module)
    run.step(unused).read()
    after = whole(run.module)
    assert torch.equal(before["blocks.0.side.weight"], after["blocks.0.side.weight"])
    assert not torch.equal(before["blocks.0.up.weight"], after["blocks.0.up.weight"])


class Filters(nn.Module):
    """Blocks of a convolution, a stack of matrices, and what is none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(FilterBlock() for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class FilterBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 3, padding=1)
        self.each = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.experts = nn.Parameter(torch.randn(2, 4, 4) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.tanh(self.each(self.mix(x)))
        return x + torch.einsum("nchw,ecd->ndhw", x, self.experts)


def test_filters_are_matrices_and_stacks_are_several():
    torch.manual_seed(0)
    module, theirs = Filters(), Filters()
    theirs.load_state_dict(module.state_dict())
    run = climb(module, loss="cross_entropy", optimizer=MUON, plan="fp32", device="cpu")
    assert {one.matrix.name for one in run.optimizer.held} == {
        f"blocks.{index}.{name}" for index in range(2) for name in ("mix.weight", "experts")
    }
    same = f"{MUON} group=*.each.weight:by=adamw group=*.experts:by=muon"
    plain = PlainLoop(
        theirs, "cross_entropy", Precision.parse("fp32"), Optimizer.parse(same),
        blocks=["blocks.0", "blocks.1"],
    )  # fmt: skip
    images, start = (torch.randn(8, 3, 5, 5), torch.arange(8) % 3), whole(theirs)
    for _ in range(3):
        run.step(images).read()
        plain.step(*images)
    for name, value in whole(theirs).items():
        moved = (value - start[name]).norm()
        assert (run.module.get_parameter(name) - value).norm() <= 1e-4 * moved, name


def test_a_group_that_gives_muon_a_vector_is_refused():
    with pytest.raises(PlanError) as raised:
        begin("fp32", "muon group=*.weight:by=muon")
    assert str(raised.value) == (
        "optimizer: group=*.weight:by=muon gives muon 'blocks.0.attention_norm.weight' of shape "
        "(32,), which is no matrix. Leave by=muon out."
    )


def test_masters_go_where_float32_parameters_do():
    """Given the same gradients: matrices to the bit, what AdamW updates to its last digits."""
    taken, wide = begin("bf16-master"), begin("bf16")
    others, draw = dict(wide.module.named_parameters()), torch.Generator().manual_seed(0)
    for _ in range(3):
        for name, p in taken.module.named_parameters():
            p.grad = torch.randn(p.shape, generator=draw).bfloat16()
            others[name].grad = p.grad.float()
        for run in (taken, wide):
            run.optimizer.step()
    matrices = 0
    for name, p in taken.module.named_parameters():
        master = taken.optimizer.state[p]["master"]
        assert p.dtype == torch.bfloat16 and torch.equal(p, master.bfloat16())
        if name in taken.optimizer.names:
            matrices += 1
            assert torch.equal(master, others[name])
        torch.testing.assert_close(master, others[name], rtol=1e-6, atol=1e-6)
    assert matrices == 14


def test_masters_learn_what_a_plain_loop_does():
    run, other = begin("bf16-master micro=4"), make()
    precision, optimizer = Precision.parse("bf16-master"), Optimizer.parse(MUON)
    blocks = [f"blocks.{index}" for index in range(2)]
    plain = PlainLoop(other, "cross_entropy", precision, optimizer, blocks=blocks)
    for step in range(6):
        assert run.step(batch(step)).loss == pytest.approx(plain.step(*batch(step)).loss, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "state=10",
            "state: state=10 is a form of Adam's moments, and muon keeps a momentum. Leave state "
            "out, or use adamw.",
        ),
        (
            "update=backward",
            "update: update=backward updates a parameter alone, and muon matrices of a shape "
            "together. Use update=step, or adamw.",
        ),
    ],
)
def test_forms_of_adams_state_are_refused(words, said):
    with pytest.raises(PlanError) as refused:
        begin(f"bf16-master {words}", "muon")
    assert str(refused.value) == said


def test_its_momentum_is_not_that_of_sgd(tmp_path):
    def start(optimizer):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False))
        return climb(module, loss="squared_error", optimizer=optimizer, plan="fp32", device="cpu")

    run = start("muon group=*:by=muon")
    run.step((torch.ones(4, 3), torch.ones(4, 2))).read()
    run.save(tmp_path)
    for words, of_use in (("momentum lr=0.1", False), ("muon group=*:by=muon", True)):
        again = start(words)
        again.load(tmp_path)
        assert any("of no use" in event for event in again.events) != of_use
