"""The head and its loss as one: the same numbers, and only where the answer is the head's."""

import copy

import pytest
import torch
from torch import nn

from stepladder.data import Batch
from stepladder.kernels.fused_head import why_not_fused
from stepladder.loss import make_loss
from stepladder.model import build, find_anatomy
from stepladder.plan import Plan, SettledPlan
from stepladder.plan.shared_constants import FUSED_VOCABULARY
from stepladder.train import as_batch, climb
from tests.soak import soak_after

WORDS = FUSED_VOCABULARY
SHAPE = f"llama:layers=1,hidden=16,heads=2,vocab={WORDS},sequence=8,tied=1"


def pairs(number=3, rows=4):
    draw = torch.Generator().manual_seed(0)
    for _ in range(number):
        made = torch.randint(0, WORDS, (rows, 9), generator=draw)
        targets = made[:, 1:].clone()
        targets[0, 2:] = -100
        targets[1] = -100
        yield made[:, :-1].contiguous(), targets


def learn(model, plan, batches, loss="cross_entropy", optimizer="sgd lr=1"):
    run = climb(copy.deepcopy(model), loss=loss, optimizer=optimizer, plan=plan, device="cpu")
    return [run.step(batch).loss for batch in batches], run


@pytest.mark.parametrize(
    "plan", soak_after(["fp32", "fp32 micro=1", "fp32 recompute=blocks", "bf16", "fp16"], gate=3)
)
def test_the_mathematics_stays(plan):
    model = build(SHAPE)
    plain, one = learn(model, plan, list(pairs()))
    fused, other = learn(model, f"{plan} kernels=on", list(pairs()))
    tolerance = 1e-5 if plan.startswith("fp32") else 2e-3
    assert fused == pytest.approx(plain, rel=tolerance)
    for p, q in zip(one.module.parameters(), other.module.parameters()):
        assert (p - q).norm() <= 10 * tolerance * p.norm()


def test_the_logits_never_exist_in_training_and_do_for_everybody_else(monkeypatch):
    seen = []
    whole = torch.nn.functional.linear

    def watched(x, weight, bias=None):
        out = whole(x, weight, bias)
        seen.append(out.shape[-1])
        return out

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    _, run = learn(build(SHAPE), "fp32 kernels=on", [])
    run.gradients(as_batch(next(pairs(1)), 0))
    assert seen and WORDS not in seen
    assert run.module(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, WORDS)
    assert WORDS in seen


def test_evaluation_agrees():
    model, held = build(SHAPE), list(pairs(2))
    _, plain = learn(model, "fp32", [])
    _, fused = learn(model, "fp32 kernels=on", [])
    assert fused.evaluate(held) == pytest.approx(plain.evaluate(held), rel=1e-5)
    metrics = {"mean": lambda logits, targets: logits.square().mean(), "rows": lambda o, t: len(o)}
    one, other = (run.evaluate(held, metrics=metrics) for run in (plain, fused))
    assert other.metrics == pytest.approx(one.metrics, rel=1e-5), "of logits"
    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert torch.allclose(plain.predict(held), fused.predict(held), atol=1e-5)


class Squashed(nn.Module):
    """Does to its logits what Gemma does."""

    def __init__(self, cap):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, WORDS, bias=False)
        self.cap = cap

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        logits = self.head(hidden)
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits


@pytest.mark.parametrize("cap", [None, 0.5, 30])
def test_a_foreign_module_is_fused_only_where_its_answer_is_its_heads(cap):
    torch.manual_seed(0)
    model = Squashed(cap)
    plain, _ = learn(model, "fp32", list(pairs()))
    fused, run = learn(model, "fp32 kernels=on", list(pairs()))
    assert fused == pytest.approx(plain, rel=1e-5)
    head = run.climbed.forward_backward.loss.function.__self__
    assert True in head.checked
    wanted = "Squashed changes its head's output" if cap else ""
    assert head.refusal == wanted
    refused = f"kernels: {wanted}, and keeps its own loss"
    assert run.events[-1] == refused if cap else all("keeps its own" not in e for e in run.events)


class Ending(Squashed):
    """Ends in a way that its initial weights, or its first values, do not show."""

    def __init__(self, ending):
        super().__init__(None)
        self.ending = ending
        self.gain, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(WORDS))
        if ending == "cap":
            nn.init.zeros_(self.head.weight)

    def forward(self, tokens):
        logits = super().forward(tokens)
        if self.ending == "cap":
            return 30 * torch.tanh(logits / 30)
        if self.ending == "gain":
            return logits * self.gain
        return logits + self.bias if self.ending == "bias" else logits


@pytest.mark.parametrize("ending", ["none", "cap", "gain", "bias"])
def test_what_follows_the_head_is_seen_whatever_the_first_weights_are(ending):
    torch.manual_seed(0)
    model = Ending(ending)
    plain, one = learn(model, "fp32", list(pairs()), optimizer="sgd lr=3")
    fused, run = learn(model, "fp32 kernels=on", list(pairs()), optimizer="sgd lr=3")
    assert fused == pytest.approx(plain, rel=1e-4)
    for p, q in zip(one.module.parameters(), run.module.parameters()):
        assert (p - q).norm() <= 1e-4 * p.norm() + 1e-7
    refusal = run.climbed.forward_backward.loss.function.__self__.refusal
    assert bool(refusal) == (ending != "none")


class OwnForCausalLM(Squashed):
    """Computes its loss itself, with a term of its own; takes no use_cache."""

    def __init__(self, term):
        super().__init__(None)
        self.term = term

    def forward(self, input_ids, labels=None):
        logits = super().forward(input_ids)
        if labels is None:
            return Output(None, logits)
        flat = logits[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(flat, labels[:, 1:].flatten())
        if self.term == "z":
            loss = loss + 1e-3 * flat.logsumexp(-1).square().mean()
        if self.term == "penalty":
            loss = loss + self.layers[0].weight.square().mean()
        return Output(loss, logits)


class Output(dict):
    def __init__(self, loss, logits):
        super().__init__(loss=loss, logits=logits)
        self.loss, self.logits = loss, logits


@pytest.mark.parametrize("term", ["", "z", "penalty"])
def test_terms_of_a_modules_own_loss_are_kept(term):
    torch.manual_seed(0)
    model = OwnForCausalLM(term)
    batches = [{"input_ids": tokens, "labels": tokens.clone()} for tokens, _ in pairs()]
    plain, _ = learn(model, "fp32", batches, loss=None)
    fused, run = learn(model, "fp32 kernels=on", batches, loss=None)
    assert fused == pytest.approx(plain, rel=1e-5)
    refusal = run.climbed.forward_backward.loss.function.__self__.refusal
    assert bool(refusal) == bool(term)


def test_unmodified_hugging_face_models_keep_their_loss():
    transformers = pytest.importorskip("transformers", reason="foreign models need transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=16
    )
    llama = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=16,
    )  # fmt: skip
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    for model in (transformers.GPT2LMHeadModel(config), transformers.LlamaForCausalLM(llama)):
        batches = []
        for tokens, _ in pairs():
            labels = tokens.clone()
            labels[0, 4:] = -100
            batches.append({"input_ids": tokens, "labels": labels})
        plain, _ = learn(model, "fp32", batches, loss=None)
        fused, run = learn(model, "fp32 kernels=on", batches, loss=None)
        assert fused == pytest.approx(plain, rel=1e-5)
        assert run.climbed.forward_backward.loss.function.__self__.refusal == ""
        assert run.module(batches[0]["input_ids"]).logits.shape[-1] == WORDS


@pytest.mark.parametrize(
    ("make", "loss", "why"),
    [
        (lambda: build(SHAPE), "cross_entropy", ""),
        (
            lambda: build(SHAPE.replace(str(WORDS), str(WORDS - 1))),
            "cross_entropy",
            "32,767 classes; it is faster from 32,768",
        ),
        (lambda: build(SHAPE), lambda outputs, targets: outputs.mean(), "not a cross-entropy"),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, WORDS)), "cross_entropy", "a bias"),
    ],
    ids=["all is well", "a small vocabulary", "a loss of one's own", "a bias"],
)
def test_a_head_that_is_not_fused_says_why(make, loss, why):
    module = make()
    settled = SettledPlan(Plan.parse("fp32 kernels=on"))
    found = why_not_fused(module, find_anatomy(module), make_loss(loss, module), settled)
    assert found.endswith(why) and bool(found) == bool(why)


def test_a_batch_without_a_valid_target_is_zero_and_moves_nothing():
    tokens, targets = next(pairs(1))
    _, run = learn(build(SHAPE), "fp32 kernels=on", [])
    report = run.step(Batch.of((tokens, torch.full_like(targets, -100)), position=0, size=4))
    assert report.loss == 0.0
