"""A loss with parameters of its own is trained, synchronised and saved as in a plain torch loop."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import ModelError
from stepladder.rungs.loss_leaves import CLIMBED
from stepladder.train import climb
from stepladder.verify.reference import whole_parameters
from tests.loss.loss_cases import CLASSES, INPUTS
from tests.ranks import run as on_ranks
from tests.soak import soak_after
from tests.train.toys import llama, ragged

RATE = 0.2
ONE, TWO = ["fp32", "fp32 micro=4"], ["fp32 ddp", "fp32 zero1 micro=4", "fp32 zero2"]
TWO += ["fp32 zero3 micro=4", "fp32 tensor=2", "fp32 pipeline=2 micro=4"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Learned(nn.Module):
    """A head as ArcFace's, a temperature without dimensions, and a buffer that counts calls."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 5)
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("offset", torch.tensor([0.0, 0.5, -0.5, 0.1, 0.2]))
        self.modes = []

    def forward(self, outputs, targets):
        self.modes.append(self.training)
        logits = self.head(functional.normalize(outputs, dim=-1)) + self.offset
        return functional.cross_entropy(logits * self.temperature.exp(), targets)


def parts():
    torch.manual_seed(3)
    module, loss = Net(), Learned()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return module, loss


def plain(steps, optimizer="sgd"):
    """Losses, gradient norms, and all parameters by name; nothing of it is stepladder's."""
    module, loss = parts()
    named = {**dict(module.named_parameters())}
    named |= {f"loss.{name}": p for name, p in loss.named_parameters()}
    if optimizer == "sgd":
        learner = torch.optim.SGD(named.values(), lr=RATE)
    else:
        learner = torch.optim.Adam(named.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-3)
    found = []
    for _ in range(steps):
        learner.zero_grad()
        value = loss(module(INPUTS), CLASSES)
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(named.values(), 1e9 if optimizer == "sgd" else 0.1)
        learner.step()
        found.append((value.item(), norm.item()))
    return found, {name: p.detach() for name, p in named.items()}


OPTIMIZERS = {"sgd": f"sgd lr={RATE}", "adam": f"adam lr={RATE} eps=1e-3 clip=0.1"}


def train(plan, steps, optimizer="sgd", save=None, load=None):
    module, loss = parts()
    run = climb(
        module, loss=loss, optimizer=OPTIMIZERS[optimizer], plan=plan, device="cpu",
        sample=(INPUTS, CLASSES),
    )  # fmt: skip
    if load:
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.zero_()
        run.load(load)
    found = []
    for _ in range(steps):
        report = run.step((INPUTS, CLASSES), rows="global")
        found.append((report.loss, report.grad_norm))
    if save:
        run.save(save)
    named = whole_parameters(run.module)
    if run.climbed.loss_module:
        named |= {f"loss.{name}": p.detach().clone() for name, p in loss.named_parameters()}
    return found, named


def train_all(plan, folder, other):
    torch.set_num_threads(1)
    first = {name: train(plan, 3, name, save=f"{folder}/{name}") for name in OPTIMIZERS}
    again = train(other, 2, "adam", load=f"{folder}/adam")
    return first, again


def check(found, expected, steps):
    losses, named = found
    wanted, parameters = expected
    for mine, theirs in zip(losses, wanted[-steps:], strict=True):
        assert mine == pytest.approx(theirs, rel=2e-5)
    for name, value in named.items():
        assert torch.allclose(value, parameters[name], rtol=2e-4, atol=1e-5), name


@pytest.mark.parametrize("plan", ONE)
def test_a_loss_is_trained_as_in_a_plain_loop(plan, tmp_path):
    first, again = train_all(plan, tmp_path, "fp32")
    for name in OPTIMIZERS:
        check(first[name], plain(3, name), 3)
        assert {"loss.temperature", "loss.head.weight"} <= set(first[name][1])
    check(again, plain(5, "adam"), 2)


@pytest.mark.parametrize(
    ("plan", "other"),
    # Each plan trains or goes on from another's checkpoint; in the soak, both.
    soak_after([*zip(TWO[::2], TWO[1::2]), *zip(TWO[1::2], [*TWO[2::2], TWO[0]])], gate=3),
)
def test_a_loss_is_trained_and_saved_on_ranks_as_in_a_plain_loop(plan, other, tmp_path):
    ranks = on_ranks(train_all, 2, plan, tmp_path, other)
    for name in OPTIMIZERS:
        expected = plain(3, name)
        for first, _ in ranks:
            check(first[name], expected, 3)
        assert any("loss.temperature" in first[name][1] for first, _ in ranks)
    for _, again in ranks:
        check(again, plain(5, "adam"), 2)
    check(train("fp32", 2, "adam", load=f"{tmp_path}/adam"), plain(5, "adam"), 2)


def test_groups_see_the_parameters_of_a_loss_and_checkpoints_keep_them_apart(tmp_path):
    module, loss = parts()
    how = f"sgd lr={RATE} group=loss.*:lr=x0"
    run = climb(module, loss=loss, optimizer=how, plan="fp32", device="cpu")
    before = loss.temperature.item()
    run.step((INPUTS, CLASSES)).read()
    assert loss.temperature.item() == before
    manifest = json.loads(next(run.save(tmp_path).glob("*.json")).read_text())
    names = set(manifest["tensors"])
    assert {"loss/temperature", "loss/head.weight", "loss/offset"} <= names
    assert not [name for name in names if name.startswith("model/loss")]


def test_a_loss_evaluates_with_the_module_and_trains_as_its_user_left_it():
    module, loss = parts()
    loss.head.eval()
    run = climb(module, loss=loss, optimizer="sgd lr=0.1", plan="fp32", device="cpu")
    run.step((INPUTS, CLASSES)).read()
    run.evaluate([(INPUTS, CLASSES)])
    run.step((INPUTS, CLASSES)).read()
    assert loss.modes == [True, False, True] and not loss.head.training


def test_a_model_that_has_the_names_of_its_loss_is_refused():
    module, loss = parts()
    module.loss = nn.Linear(2, 2)
    with pytest.raises(ModelError, match=r"Learned is trained as 'loss\.\*', and the model's own"):
        climb(module, loss=loss, plan="fp32", device="cpu")


def test_a_loss_that_runs_a_module_which_nothing_trains_is_refused_unless_it_is_frozen():
    CLIMBED.clear()  # runs of other tests may still be there, and have such a parameter
    module, head = parts()
    frozen = functional.cross_entropy
    run = climb(module, loss=lambda o, t: head(o, t) + frozen(o, t), plan="fp32", device="cpu")
    with pytest.raises(ModelError, match=r"loss: reads a trainable parameter of shape \(\)"):
        run.step((INPUTS, CLASSES))
    head.requires_grad_(False)
    assert run.step((INPUTS, CLASSES)).read().step == 0


class TokenLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 64)

    def forward(self, outputs, targets):
        return functional.cross_entropy(self.head(outputs).flatten(0, 1), targets.flatten())


def train_tokens(plan):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    loss = TokenLoss()
    run = climb(llama(), loss=loss, optimizer="sgd lr=0.1", plan=plan, device="cpu")
    norms = [run.step(batch, rows="global").grad_norm for batch in ragged(2, rows=4)]
    return norms, loss.head.weight.detach()


def test_chunks_of_a_sequence_train_one_loss():
    norms, weight = train_tokens("fp32")
    for found, other in on_ranks(train_tokens, 2, "fp32 context=2"):
        assert found == pytest.approx(norms, rel=1e-4)
        assert torch.allclose(other, weight, atol=1e-6)
