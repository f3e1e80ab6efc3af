"""A penalty over the module's parameters counts once a step, or is refused before the first one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import ModelError
from stepladder.train import climb
from tests.loss.loss_cases import CLASSES, INPUTS
from tests.ranks import run as on_ranks
from tests.rungs.test_trained_loss import Net
from tests.train.toys import net, pairs

RATE = 0.1


class Branch(Net):
    """With a part that no forward pass uses."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)


def made():
    torch.manual_seed(4)
    module = Branch()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.4)
    return module


def penalised(module):
    def loss(outputs, targets):
        penalty = sum(p.pow(2).sum() for p in module.parameters())
        return functional.cross_entropy(outputs, targets) + 0.05 * penalty

    return loss


def plain():
    module = made()
    loss, learner = penalised(module), torch.optim.SGD(module.parameters(), lr=RATE)
    found = []
    for _ in range(3):
        learner.zero_grad()
        value = loss(module(INPUTS), CLASSES)
        value.backward()
        learner.step()
        found.append(value.item())
    return found, [p.detach() for p in module.parameters()]


def planned(plan):
    torch.set_num_threads(1)
    module = made()
    before = [p.detach().clone() for p in module.parameters()]
    run = climb(
        module, loss=penalised(module), optimizer=f"sgd lr={RATE}", plan=plan, device="cpu",
        sample=(INPUTS, CLASSES),
    )  # fmt: skip
    try:
        found = [run.step((INPUTS, CLASSES), rows="global").loss for _ in range(3)]
    except ModelError as refused:
        return str(refused), run.index
    assert not any(map(torch.equal, before, module.parameters()))
    return found, [p.detach().clone() for p in module.parameters()]


def check(found):
    losses, parameters = plain()
    assert found[0] == pytest.approx(losses, rel=1e-5)
    for mine, theirs in zip(found[1], parameters, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", ["fp32", "fp32 micro=4"])
def test_a_penalty_over_parameters_counts_once_a_step(plan):
    check(planned(plan))


@pytest.mark.parametrize("plan", ["fp32 ddp", "fp32 ddp micro=2", "fp32 zero1 micro=4"])
def test_a_penalty_over_parameters_counts_once_on_two_ranks(plan):
    for found in on_ranks(planned, 2, plan):
        check(found)


@pytest.mark.parametrize("plan", ["fp32 zero2", "fp32 zero3 micro=4", "fp32 tensor=2"])
def test_a_penalty_over_sharded_parameters_is_refused_by_all_ranks(plan):
    for said, steps in on_ranks(planned, 2, plan):
        assert steps == 0
        assert said.startswith("loss: reads the module's parameters (")
        assert "of which this plan gives a rank only a part. Use weight decay (wd=...)" in said


def test_a_penalty_over_the_parameters_of_all_stages_is_refused():
    for said, _ in on_ranks(planned, 2, "fp32 pipeline=2 micro=4"):
        assert said.startswith("loss: it reads 'parameters'() of the module, of which a pipeline")


def shared(plan):
    """A loss that holds a parameter of the model, beside one of its own."""
    torch.set_num_threads(1)
    module = net()

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = module.last.weight
            self.bias = nn.Parameter(torch.zeros(5))

        def forward(self, outputs, targets):
            mean = functional.cross_entropy(outputs + self.bias, targets)
            return mean + 0.1 * self.weight.square().sum()

    loss = Own()
    try:
        run = climb(module, loss=loss, optimizer=f"sgd lr={RATE}", plan=plan, device="cpu")
    except ModelError as refused:
        return str(refused), None
    return [run.step(batch, rows="global").loss for batch in pairs(3)], loss.bias.detach()


def test_a_loss_may_hold_a_parameter_of_the_model_where_the_plan_keeps_it_whole():
    losses, bias = shared("fp32")
    for found, other in on_ranks(shared, 2, "fp32 ddp micro=2"):
        assert found == pytest.approx(losses, rel=1e-5)
        assert torch.allclose(other, bias, atol=1e-6)
    for said, _ in on_ranks(shared, 2, "fp32 zero3"):
        assert said.startswith("loss: holds the model's parameter 'last.weight', which this plan")


class Table(nn.Module):
    """An embedding whose long rows its forward pass shortens."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, max_norm=0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens))


def test_a_penalty_over_rows_that_a_part_of_the_batch_shortens_is_refused():
    torch.manual_seed(0)
    tokens, targets = torch.arange(6), torch.tensor([0, 1, 2, 0, 1, 2])
    for plan in ("fp32", "fp32 micro=3"):
        module = Table()
        run = climb(module, loss=penalised(module), plan=plan, device="cpu")
        if "micro" not in plan:
            assert run.step((tokens, targets)).loss > 0  # the whole batch shortens all its rows
            continue
        with pytest.raises(ModelError) as refused:
            run.step((tokens, targets))
        assert str(refused.value) == (
            "loss: reads 'table.weight', whose rows max_norm shortens in forward, and this plan "
            "computes a batch in parts, each of which shortens its own rows. Use weight decay "
            "(wd=...) instead of a penalty, leave max_norm out, or compute a batch at once on one "
            "rank."
        )
