"""What a tensor or context axis would change is refused at the first batch, whatever the first
weights hide; what it leaves alone is trained as by a plain loop."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from stepladder.errors import StepladderError
from stepladder.train import climb
from tests.ranks import run as on_ranks

torch.set_num_threads(1)
VOCAB, WIDTH, LENGTH = 13, 8, 48


class Mlp(nn.Module):
    """A pair of linears, and between them something that a cut may change."""

    def __init__(self, kind: str, index: int) -> None:
        super().__init__()
        self.kind, self.index = kind, index
        self.fc1, self.fc2 = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.drop = nn.Dropout(0.0)
        if kind == "zero softmax":
            nn.init.zeros_(self.fc2.weight)

    def forward(self, x):
        hidden = torch.tanh(self.fc1(x))
        normed = functional.layer_norm(hidden, hidden.shape[-1:])
        match self.kind:
            case "zero softmax":
                hidden = self.fc1(x).softmax(-1)
            case "second block" if self.index:
                hidden = normed
            case "training" if self.training:
                hidden = normed
            case "long rows" if x.shape[1] > 20:
                hidden = normed
        return x + self.drop(self.fc2(hidden))


class Mixer(nn.Module):
    """Torch's attention, and something else that may look across tokens."""

    def __init__(self, kind: str, index: int) -> None:
        super().__init__()
        self.kind = kind
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Parameter(torch.zeros(WIDTH))
        self.conv = nn.Conv1d(WIDTH, WIDTH, 2, dilation=40, padding=40)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, w))
        match self.kind:
            case "dilation":
                x = x + self.gate * self.conv(x.mT)[..., :t].mT
            case "token shift":
                x = x + self.gate * functional.pad(x, (0, 0, 1, 0))[:, :-1]
            case "mean":
                x = x + self.gate * x.mean(1, keepdim=True)
            case "fourier":
                x = x + self.gate * torch.fft.fft(x, dim=1).real
            case "rare rows":
                rare = x.detach().abs().sum((1, 2)) > 550  # in few random draws
                x = torch.where(rare[:, None, None], torch.tanh(x), x)
            case "batch norm":
                x = x + self.norm(x.flatten(0, 1)).view(b, t, w)
        return x


class Model(nn.Module):
    def __init__(self, block, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embed, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        nn.init.zeros_(self.places.weight)
        self.blocks = nn.ModuleList(block(kind, index) for index in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, positions=None):
        if positions is None or self.kind == "own positions":
            positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = self.embed(tokens) + self.places(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(block, kind: str) -> Model:
    torch.manual_seed(0)
    return Model(block, kind)


def batch():
    draw = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, VOCAB, (3, LENGTH), generator=draw) for _ in range(2))


def attempt(block, kinds, plan: str) -> dict[str, str | float]:
    found: dict[str, str | float] = {}
    for kind in kinds:
        try:
            module = make(block, kind)
            before = torch.random.get_rng_state()
            run = climb(
                module, loss="cross_entropy", optimizer="sgd lr=0.3", plan=plan, device="cpu"
            )
            assert torch.equal(before, torch.random.get_rng_state()), kind
            found[kind] = [run.step(batch()).loss for _ in range(3)][-1]
        except StepladderError as refusal:
            found[kind] = str(refusal)
    return found


def plainly(block, kind: str) -> float:
    module = make(block, kind)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(3):
        tokens, targets = batch()
        loss = functional.cross_entropy(module(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    ("block", "plan", "kinds"),
    [
        (Mlp, "fp32 tensor=2", ("zero softmax", "second block", "training", "long rows")),
        (
            Mixer,
            "fp32 context=2",
            ("dilation", "token shift", "mean", "fourier", "own positions", "rare rows"),
        ),
    ],
    ids=["tensor", "context"],
)
def test_what_initial_weights_hide_is_refused_on_every_rank(block, plan, kinds):
    one, other = on_ranks(attempt, 2, block, (*kinds, ""), plan, init=False)
    assert one.pop("") == other.pop("") == pytest.approx(plainly(block, ""), rel=1e-4)
    assert one == other
    for kind in kinds:
        assert isinstance(one[kind], str), f"{kind} was trained"
        assert "\n" not in one[kind]


def predicted(block, plan: str):
    """What is said of a prediction before the first loss, and what is predicted after it."""
    run, (tokens, targets) = climb_whole(block, plan), batch()
    given = (tokens, targets) if "context" in plan else tokens
    try:
        refused = run.predict([given])
    except StepladderError as refusal:
        refused = str(refusal)
    run.evaluate([(tokens, targets)])
    return refused, run.predict([given])


def climb_whole(block, plan: str):
    return climb(make(block, ""), loss="cross_entropy", plan=plan, device="cpu")


@pytest.mark.parametrize(("block", "axis"), [(Mlp, "tensor"), (Mixer, "context")])
def test_nothing_is_predicted_by_a_cut_that_was_not_tried(block, axis):
    with torch.no_grad():
        whole = make(block, "").eval()(batch()[0])
    for refused, outputs in on_ranks(predicted, 2, block, f"fp32 {axis}=2", init=False):
        assert refused == (
            f"layout.{axis}: the cut module is tried on its first batch with a loss, and none has "
            "come yet. Call run.step or run.evaluate before run.predict."
        )
        assert torch.allclose(outputs, whole, atol=1e-5)
