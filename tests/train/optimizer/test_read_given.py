"""What is given for an optimizer is checked against the names of the whole module and its loss."""

import pytest
import torch
from torch import nn

from stepladder.errors import PlanError
from stepladder.plan import Optimizer
from stepladder.plan.optimizer import Group
from stepladder.train import climb
from stepladder.train.optimizer.read_given import check_groups


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs / self.temperature, targets)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("*.bais", "'0.bias' and '2.bias'"),
        ("bias", "'0.bias' and '2.bias'"),
        ("2.wieght", "'2.weight' and '0.weight'"),
        ("loss.temprature", "'loss.temperature' and '0.weight'"),
    ],
)
def test_a_group_without_a_parameter_is_refused_with_the_nearest_names(pattern, near):
    said = f"optimizer.group: '{pattern}' matches none of 5 parameters. The nearest are {near}."
    with pytest.raises(PlanError) as caught:
        climb(mlp(), loss=Distance(), optimizer=f"sgd lr=.1 wd=1 group={pattern}:wd=0", plan="fp32")
    assert str(caught.value) == said


def test_the_first_name_of_a_shared_parameter_is_told():
    said = "'head.*' matches only 'head.weight', which is 'embed.weight'"
    with pytest.raises(PlanError, match=said):
        check_groups(Optimizer(groups=(Group("head.*", 0.1),)), Tied(), "cross_entropy")
    check_groups(Optimizer(groups=(Group("embed.*", 0.1),)), Tied(), "cross_entropy")


def test_frozen_parameters_and_those_of_a_loss_are_groups_too():
    module = mlp()
    module[0].requires_grad_(False)
    how = "sgd lr=.1 group=0.*:lr=x0.1 group=loss.*:wd=0"
    run = climb(module, loss=Distance(), optimizer=how, plan="fp32", device="cpu")
    assert {group["lr_factor"] for group in run.optimizer.param_groups} == {1.0}
