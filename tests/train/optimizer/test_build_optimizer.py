"""Each optimizer against its own mathematics in float64, in every stored type; groups and rates."""

import copy

import pytest
import torch
from torch import nn

from stepladder.plan import Optimizer
from stepladder.train.optimizer.build_optimizer import build_optimizer, update
from stepladder.train.optimizer.learning_rates import set_rate
from tests.train.toys import net

TEXTS = [
    "sgd lr=0.1",
    "sgd lr=0.1 momentum=0.9 wd=0.1",
    "adamw lr=0.1 wd=0.1",
    "adam lr=0.1",
    "adafactor lr=0.1",
]


def reference(how: Optimizer, parameters):
    if how.name == "sgd":
        return torch.optim.SGD(parameters, how.lr, momentum=how.momentum, weight_decay=how.wd)
    if how.name == "adafactor":
        return torch.optim.Adafactor(parameters, how.lr, weight_decay=how.wd)
    kind = torch.optim.AdamW if how.name == "adamw" else torch.optim.Adam
    return kind(parameters, how.lr, betas=how.betas, eps=how.eps, weight_decay=how.wd)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float64, 1e-5)]
)
def test_every_optimizer_does_what_it_says_in_every_stored_type(text, dtype, tolerance):
    torch.manual_seed(0)
    how = Optimizer.parse(text)
    ours = nn.Parameter(torch.randn(64, 33).to(dtype))
    theirs = nn.Parameter(ours.detach().double())
    optimizer, other = build_optimizer(how, [("w", ours)]), reference(how, [theirs])
    for _ in range(3):
        gradient = torch.randn(64, 33).to(dtype)
        ours.grad, theirs.grad = 4 * gradient, gradient.double()
        update(optimizer, torch.tensor(4.0), torch.tensor(0.0))
        other.step()
    assert ((ours.double() - theirs).norm() / theirs.norm()).item() < tolerance


@pytest.mark.parametrize("text", TEXTS)
def test_a_bad_update_leaves_parameters_and_state(text):
    module = net()
    optimizer = build_optimizer(Optimizer.parse(text), module.named_parameters())
    for _ in range(2):
        for p in module.parameters():
            p.grad = torch.randn_like(p)
        update(optimizer, torch.tensor(1.0), torch.tensor(0.0))
    before = copy.deepcopy((module.state_dict(), optimizer.state_dict()["state"]))
    for p in module.parameters():
        p.grad = torch.full_like(p, float("nan"))
    update(optimizer, torch.tensor(1.0), torch.tensor(1.0))
    after = (module.state_dict(), optimizer.state_dict()["state"])
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    for index, state in before[1].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[1][index][key])), key


def test_groups_are_rules_over_names_and_the_first_match_wins():
    how = Optimizer.parse("adamw lr=1 wd=0.1 group=*.bias:wd=0 group=last.*:lr=x0.5")
    groups = build_optimizer(how, net().named_parameters()).param_groups
    found = {(g["lr_factor"], g["weight_decay"]): len(g["params"]) for g in groups}
    assert found == {(1.0, 0.1): 1, (1.0, 0): 2, (0.5, 0.1): 1}


def test_layerwise_rates_shrink_from_the_top_down():
    how = Optimizer.parse("sgd lr=1 layers=0.5")
    module = nn.ModuleDict(
        {
            "embed": nn.Linear(1, 1, bias=False),
            "blocks": nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(2)]),
            "head": nn.Linear(1, 1, bias=False),
        }
    )
    optimizer = build_optimizer(how, module.named_parameters(), ["blocks.0", "blocks.1"])
    set_rate(optimizer, 1.0)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    by_name = {name: rates[id(p)] for name, p in module.named_parameters()}
    assert by_name == {
        "embed.weight": 0.125, "blocks.0.weight": 0.25, "blocks.1.weight": 0.5, "head.weight": 1.0
    }  # fmt: skip


def test_a_pipeline_stage_without_trainable_parameters_has_an_optimizer_of_nothing():
    assert [
        p.numel() for g in build_optimizer(Optimizer(), []).param_groups for p in g["params"]
    ] == [0]
